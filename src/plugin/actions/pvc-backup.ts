import { CodedError, messageOf, quantityBytes, quantityOf, Semaphore } from '../../base/index.ts';
import {
  annotatedExcludes,
  apiVersionOf,
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  BACKUPS,
  DATA_UPLOADS,
  type DataUpload,
  type KubeObject,
  type NewObject,
  NO_PARENT,
  NOT_IN_BACKUPS,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  validLabel,
  VOLUME_SNAPSHOTS,
} from '../../kube/index.ts';
import type {
  BackupItemAction,
  BackupOutput,
  CallContext,
  OperationProgress,
} from '../contract.ts';
import { removeMovedGroups } from './groups/group-contents.ts';
import { groupOf, GroupSnapshots } from './groups/group-snapshots.ts';
import { Movements } from './movements/movements.ts';
import { removeOrphans, type Sweep } from './snapshots/leftover-snapshots.ts';
import {
  identifier,
  isStoredAgain,
  nameFor,
  patiently,
  placeOf,
  type Setting,
  SNAPSHOT_GROUP,
  snapshotTimeout,
  withMarks,
} from './settings.ts';
import { type CutSnapshot, Snapshots } from './snapshots/snapshots.ts';
import {
  FOR_BACKUP,
  MUST_INCLUDE,
  OPERATION_ID,
  PVC_UID,
  SKIPPED_NO_CSI,
  SNAPSHOT_NAME,
  SNAPSHOT_WAY,
  UPLOAD_NAME,
} from './velero-names.ts';
import { isBound, type PlannedBackup, VolumeChoice } from './volume-choice.ts';

/**
 * Concurrent snapshots of one backup. Velero's server runs as many as it has block workers (by
 * default one); other hosts run all at once. Our choice: each holds a watch, and drivers rarely get
 * more requests.
 */
const TAKEN_AT_ONCE_MAX = 32;
/** Time limit of a sweep beside the polls of an operation. Our choice. */
const SWEEP_MS_MAX = 300_000;

/**
 * Takes the snapshot of a PVC with a CSI volume. If a rule or `snapshotMoveData` says so, requests
 * its move. Returns when the storage has cut the snapshot, and waits for no data.
 */
export class PvcBackup implements BackupItemAction {
  readonly #setting: Setting;
  readonly #choice: VolumeChoice;
  readonly #snapshots: Snapshots;
  readonly #uploads: Movements<DataUpload>;
  readonly #groups: GroupSnapshots;
  readonly #places = new Semaphore(TAKEN_AT_ONCE_MAX);
  /** Sweeps by key. A process serves one backup, or polls operations of several. */
  readonly #swept = new Map<string, Promise<void>>();

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#choice = new VolumeChoice(setting);
    this.#snapshots = new Snapshots(setting);
    this.#groups = new GroupSnapshots(setting, this.#choice, this.#snapshots);
    this.#uploads = new Movements(setting, DATA_UPLOADS, BACKUP_UID);
  }

  async execute(item: KubeObject, backup: Backup, context: CallContext): Promise<BackupOutput> {
    if (isStoredAgain(backup)) return {};
    const { signal } = context;
    const pvc = await this.#asBound(item as PersistentVolumeClaim, signal);
    const planned = await this.#choice.snapshotOf(pvc, backup, signal);
    if (planned.way === undefined) {
      if (planned.withoutVolume !== undefined) {
        this.#tellWithoutVolume(pvc, planned.withoutVolume);
        return {};
      }
      this.#tellLeftOut(pvc, backup);
      this.#setting.logger.info({ PVC: placeOf(pvc) }, 'no snapshot is wanted of this PVC');
      return {};
    }
    if (planned.way === 'native') {
      const isOfCsi = isCsi(planned.pv);
      if (isOfCsi) this.#tellLeftOut(pvc, backup);
      const why = isOfCsi
        ? 'no CSI snapshot: a rule leaves the volume to a VolumeSnapshotter'
        : 'no snapshot: the volume is of no CSI driver';
      this.#setting.logger.info({ PVC: placeOf(pvc) }, why);
      return isOfCsi ? {} : { item: withMarks(pvc, { annotations: { [SKIPPED_NO_CSI]: 'true' } }) };
    }
    // The storage class names the driver.
    if ((pvc.spec.storageClassName ?? '') === '') {
      const text = `Cannot snapshot PVC ${placeOf(pvc)}, PVC has no storage class.`;
      throw new CodedError('NO_STORAGE_CLASS', text);
    }
    const { uid } = backup.metadata;
    await this.#sweep(uid, { namespace: namespaceOf(backup), current: backup, signal });
    await this.#places.acquire();
    try {
      signal.throwIfAborted();
      const uploads = await this.#uploadsOf(pvc, backup, signal);
      // A killed server got this far. An agent may have the snapshot already, and another snapshot
      // would have no owner.
      const own = uploads.find(({ metadata }) => metadata.name === uploadName(pvc, backup));
      if (own && planned.way === 'moved')
        return withWay(movedOutput(pvc, backup, own), planned.way, backup);
      const other = await this.#ofVelero(pvc, backup, uploads, signal);
      if (other !== undefined) {
        const fields = { PVC: placeOf(pvc), other };
        this.#setting.logger.warn(
          fields,
          "no snapshot: Velero's own CSI action has taken this volume for the same backup; run Velero without EnableCSI, or without this plugin",
        );
        return {};
      }
      return withWay(await this.#snapshot(pvc, planned.backup, context), planned.way, backup);
    } finally {
      this.#places.release();
    }
  }

  /** A PVC may be bound after the list was read. The backup must not miss its data. */
  async #asBound(
    listed: PersistentVolumeClaim,
    signal: AbortSignal,
  ): Promise<PersistentVolumeClaim> {
    if (isBound(listed)) return listed;
    const { namespace, name, uid } = listed.metadata;
    const { client } = this.#setting;
    const now = await patiently(() => client.find(PVCS, { namespace, name }, { signal }), signal);
    return now?.metadata.uid === uid && isBound(now) ? now : listed;
  }

  #tellWithoutVolume({ metadata }: PersistentVolumeClaim, reason: string): void {
    const { namespace, name } = metadata;
    this.#setting.logger.warn(
      { resource: 'persistentvolumeclaims', namespace, name, error: reason },
      'a PVC has no volume: the backup has the PVC, and no data',
    );
  }

  /** Warns when the item is handled, so each PVC has one warning, even after killed processes. */
  #tellLeftOut(pvc: PersistentVolumeClaim, backup: Backup): void {
    const group = groupOf(pvc, backup)?.value;
    if (group === undefined) return;
    const { namespace, name } = pvc.metadata;
    this.#setting.logger.warn(
      // The results of a backup identify the item by these fields.
      { resource: 'persistentvolumeclaims', namespace, name, group },
      'a PVC has the label of a volume group, and no snapshot is wanted of it',
    );
  }

  /**
   * The object that Velero's own action created for this PVC and backup, if any. That action runs
   * before plugins, and a plugin cannot see the feature flag. Snapshots of an earlier backup with
   * the same name do not count.
   */
  async #ofVelero(
    pvc: PersistentVolumeClaim,
    backup: Backup,
    uploads: readonly DataUpload[],
    signal: AbortSignal,
  ): Promise<string | undefined> {
    const { client } = this.#setting;
    const { creationTimestamp } = backup.metadata;
    const { namespace = '', name } = pvc.metadata;
    const upload = uploads.find((each) => each.metadata.name !== uploadName(pvc, backup));
    if (upload) return `DataUpload ${placeOf(upload)}`;
    const ofBackup = `${BACKUP_NAME}=${validLabel(backup.metadata.name)}`;
    const listSnapshots = () =>
      client.list(VOLUME_SNAPSHOTS, { namespace, labelSelector: ofBackup, signal });
    const snapshot = (await patiently(listSnapshots, signal)).find(
      ({ metadata, spec }) =>
        spec.source.persistentVolumeClaimName === name &&
        metadata.name.startsWith(`velero-${name}-`) &&
        metadata.annotations?.[FOR_BACKUP] === undefined &&
        Date.parse(metadata.creationTimestamp ?? '') >= Date.parse(creationTimestamp),
    );
    return snapshot && `VolumeSnapshot ${placeOf(snapshot)}`;
  }

  #uploadsOf(
    pvc: PersistentVolumeClaim,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<DataUpload[]> {
    const namespace = namespaceOf(backup);
    const labelSelector = `${BACKUP_UID}=${backup.metadata.uid},${PVC_UID}=${pvc.metadata.uid}`;
    const { client } = this.#setting;
    return patiently(() => client.list(DATA_UPLOADS, { namespace, labelSelector, signal }), signal);
  }

  async #snapshot(
    pvc: PersistentVolumeClaim,
    backup: PlannedBackup,
    context: CallContext,
  ): Promise<BackupOutput> {
    const isMoved = backup.spec.snapshotMoveData === true;
    let refusal: unknown;
    try {
      const { signal } = context;
      const group = groupOf(pvc, backup);
      return await this.#snapshots.take(
        pvc,
        backup,
        signal,
        async (cut) => {
          if (!isMoved) return keptOutput(pvc, backup, cut);
          const upload = uploadOf(pvc, backup, cut);
          try {
            return movedOutput(pvc, backup, await this.#uploads.begin(upload, context));
          } catch (error) {
            refusal = error;
            throw error;
          }
        },
        group && (() => this.#groups.snapshotOf(pvc, group, backup, signal)),
      );
    } catch (error) {
      if (refusal === undefined || context.signal.aborted) throw error;
      // As in Velero: the PVC itself is in the backup, and the line counts as an error of the
      // backup.
      const fields = { PVC: placeOf(pvc), error: messageOf(error) };
      this.#setting.logger.error(
        fields,
        'the DataUpload could not be made: the volume is not in this backup',
      );
      return {};
    }
  }

  async progress(
    operationId: string,
    backup: Backup,
    context: CallContext,
  ): Promise<OperationProgress> {
    const namespace = namespaceOf(backup);
    const progress = await this.#uploads.progress(backup.metadata, operationId, context);
    if (progress.completed && backup.spec.volumeGroupSnapshotLabelKey)
      await removeMovedGroups(this.#setting, backup, context.signal);
    // Not awaited: the sweep may outlast this call, whose signal ends with the answer.
    const signal = AbortSignal.timeout(SWEEP_MS_MAX);
    void this.#sweep(`progress/${backup.metadata.uid}`, { namespace, signal });
    return progress;
  }

  cancel(operationId: string, backup: Backup, context: CallContext): Promise<void> {
    return this.#uploads.cancel(namespaceOf(backup), operationId, context);
  }

  /** Runs once for each key. */
  #sweep(key: string, sweep: Sweep): Promise<void> {
    const swept = this.#swept.get(key) ?? removeOrphans(this.#setting, this.#snapshots, sweep);
    this.#swept.set(key, swept);
    return swept;
  }
}

const namespaceOf = ({ metadata }: Backup): string => metadata.namespace ?? '';

const isCsi = ({ spec }: PersistentVolume): boolean => spec.csi !== undefined && spec.csi !== null;

/** 76 characters before shortening, as in Velero. Agents and server find operations by it. */
export const uploadOperationId = (pvc: PersistentVolumeClaim, backup: Backup): string =>
  validLabel(`du-${backup.metadata.uid}.${pvc.metadata.uid}`);

const uploadName = (pvc: PersistentVolumeClaim, { metadata }: Backup): string =>
  nameFor(metadata.name, metadata.uid, pvc.metadata.uid);

function uploadOf(
  pvc: PersistentVolumeClaim,
  backup: Backup,
  { snapshot, content }: CutSnapshot,
): NewObject<DataUpload> {
  const { name, uid } = backup.metadata;
  const { backupType, datamover, storageLocation = '', uploaderConfig } = backup.spec;
  const parallel = uploaderConfig?.parallelFilesUpload ?? 0;
  const config = {
    ...(parallel > 0 && { ParallelFilesUpload: String(parallel) }),
    ...annotatedExcludes(pvc),
  };
  const snapshotClass = snapshot.spec.volumeSnapshotClassName;
  return {
    metadata: {
      name: uploadName(pvc, backup),
      namespace: namespaceOf(backup),
      labels: {
        [BACKUP_NAME]: validLabel(name),
        [BACKUP_UID]: uid,
        [PVC_UID]: pvc.metadata.uid,
        [OPERATION_ID]: uploadOperationId(pvc, backup),
        // Finalizing still stores the upload in its own backup, because operations name it.
        ...NOT_IN_BACKUPS,
      },
      ownerReferences: [
        { apiVersion: apiVersionOf(BACKUPS), kind: BACKUPS.kind, name, uid, controller: true },
      ],
    },
    spec: {
      snapshotType: 'CSI',
      csiSnapshot: {
        volumeSnapshot: snapshot.metadata.name,
        storageClass: pvc.spec.storageClassName ?? '',
        driver: content.spec.driver,
        ...(snapshotClass !== undefined && { snapshotClass }),
      },
      sourcePVC: pvc.metadata.name,
      sourceNamespace: pvc.metadata.namespace ?? '',
      backupStorageLocation: storageLocation,
      operationTimeout: snapshotTimeout(backup),
      ...(backupType === 'Full' && { parentSnapshot: NO_PARENT }),
      ...(datamover !== undefined && { datamover }),
      ...(Object.keys(config).length > 0 && { dataMoverConfig: config }),
    },
  };
}

function movedOutput(pvc: PersistentVolumeClaim, backup: Backup, upload: DataUpload): BackupOutput {
  const { namespace, name } = upload.metadata;
  const snapshot = upload.spec.csiSnapshot?.volumeSnapshot ?? '';
  return {
    item: withMarks(pvc, marksOf(snapshot, backup, { [UPLOAD_NAME]: placeOf(upload) })),
    operationId: uploadOperationId(pvc, backup),
    postOperationItems: [identifier('velero.io', 'datauploads', name, namespace)],
  };
}

function keptOutput(
  pvc: PersistentVolumeClaim,
  backup: Backup,
  { snapshot, content }: CutSnapshot,
): BackupOutput {
  const { namespace, name } = snapshot.metadata;
  return {
    item: withMarks(largeEnough(pvc, content.status?.restoreSize), marksOf(name, backup)),
    additionalItems: [identifier(SNAPSHOT_GROUP, 'volumesnapshots', name, namespace)],
  };
}

/** Restores use the Backup's setting, unless this annotation overrides it. */
function withWay(output: BackupOutput, way: 'csi' | 'moved', { spec }: Backup): BackupOutput {
  const { item } = output;
  if (!item) return output;
  const annotations: Record<string, string> = { ...item.metadata.annotations };
  // A value that a user wrote has no meaning.
  delete annotations[SNAPSHOT_WAY];
  if ((way === 'moved') !== (spec.snapshotMoveData === true)) annotations[SNAPSHOT_WAY] = way;
  return { ...output, item: { ...item, metadata: { ...item.metadata, annotations } } };
}

const marksOf = (
  snapshot: string,
  backup: Backup,
  more: Readonly<Record<string, string>> = {},
) => ({
  labels: {
    [SNAPSHOT_NAME]: validLabel(snapshot),
    [BACKUP_NAME]: validLabel(backup.metadata.name),
  },
  annotations: { [SNAPSHOT_NAME]: snapshot, [MUST_INCLUDE]: 'true', ...more },
});

/** Raises the request to the restore size: a volume may be larger than its request. */
function largeEnough(
  pvc: PersistentVolumeClaim,
  restoreSize: number | undefined,
): PersistentVolumeClaim {
  const { requests } = pvc.spec.resources ?? {};
  if (restoreSize === undefined || quantityBytes(requests?.storage ?? '') >= restoreSize)
    return pvc;
  const resources = {
    ...pvc.spec.resources,
    requests: { ...requests, storage: quantityOf(restoreSize) },
  };
  return { ...pvc, spec: { ...pvc.spec, resources } };
}
