import { createHash } from 'node:crypto';
import { CodedError, lookup } from '../../base/index.ts';
import {
  apiVersionOf,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  type DataDownload,
  type KubeObject,
  type NewObject,
  NOT_IN_BACKUPS,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
  type Restore,
  RESTORE_NAME,
  RESTORES,
  validLabel,
} from '../../kube/index.ts';
import type {
  CallContext,
  OperationProgress,
  RestoredBackup,
  RestoreInput,
  RestoreItemAction,
  RestoreOutput,
} from '../contract.ts';
import { Movements } from './movements/movements.ts';
import {
  identifier,
  nameFor,
  patiently,
  placeOf,
  type Setting,
  SNAPSHOT_GROUP,
  snapshotTimeout,
  withMarks,
  without,
} from './settings.ts';
import {
  inPlaceDownload,
  inPlaceOperationId,
  inPlacePolicyOf,
  misfitOf,
  notInPlace,
} from './pvc-in-place.ts';
import { restoredSnapshotName } from './snapshots/restored-name.ts';
import {
  dropResults,
  findBackup,
  isResultOf,
  resultsSelector,
  type UploadResult,
} from './movements/upload-result.ts';
import {
  DYNAMIC_PV_RESTORE,
  MUST_RESTORE,
  OPERATION_ID,
  RESTORE_UID,
  SNAPSHOT_NAME,
  SNAPSHOT_WAY,
  UPLOAD_NAME,
} from './velero-names.ts';

/**
 * Makes a PVC wait for its data: from an upload, by a DataDownload, or from a kept snapshot. The
 * backup decides which data mover is used and whether the data were moved.
 */
export class PvcRestore implements RestoreItemAction {
  readonly #setting: Setting;
  readonly #downloads: Movements<DataDownload>;

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#downloads = new Movements(setting, DATA_DOWNLOADS, RESTORE_UID);
  }

  async execute(input: RestoreInput, context: CallContext): Promise<RestoreOutput> {
    const { logger } = this.#setting;
    const { restore, backup: given } = input;
    const { signal } = context;
    const fromBackup = input.itemFromBackup as PersistentVolumeClaim;
    const pvc = withoutWay(input.item as PersistentVolumeClaim);
    /** The stored PVC without the annotation that only restores need. */
    const asStored = pvc === input.item ? {} : { item: pvc };
    const namespace = targetNamespace(pvc.metadata.namespace, restore);
    const present = await this.#find(namespace, pvc.metadata.name, signal);
    // The PVC may come from an attempt of this same restore whose server was killed. Then its
    // operation is found again and returned.
    if (present && !(await this.#isOwn(input, present, signal))) {
      const isLeft = restore.spec.restorePVs === false || inPlacePolicyOf(restore) === undefined;
      if (!isLeft) return await this.#bringBack({ pvc, fromBackup, present }, input, context);
      // The PVC may disappear before it is created again. The new PVC would be empty, and nothing
      // would fill it.
      if (present.metadata.deletionTimestamp !== undefined) throw isLeaving(present);
      logger.warn(
        { PVC: `${namespace}/${pvc.metadata.name}` },
        'the PVC is there already: it is left alone',
      );
      return asStored;
    }
    if (restore.spec.restorePVs === false) return { item: withoutVolume(pvc) };
    const backup = given ?? (await findBackup(this.#setting, restore, signal));
    const { annotations = {} } = fromBackup.metadata;
    if (wayOf(fromBackup, backup) !== 'moved') {
      const snapshot = annotations[SNAPSHOT_NAME];
      if (snapshot === undefined) return asStored;
      const ref = { namespace: fromBackup.metadata.namespace ?? '', name: snapshot };
      const made = await restoredSnapshotName(this.#setting, restore, ref, signal);
      return fromSnapshot(pvc, snapshot, made);
    }
    if (annotations[UPLOAD_NAME] === undefined) {
      // Velero's native snapshots, or skipped volumes.
      logger.warn({ PVC: placeOf(fromBackup) }, 'the backup has no upload of this PVC');
      return asStored;
    }
    const result = await this.#resultOf(fromBackup, restore, signal);
    const download = downloadOf(pvc, fromBackup, restore, backup, result);
    const begun = await (present
      ? this.#downloads.begin(download, context)
      : this.#downloads.beginAgain(download, context));
    this.#tellCanceled(begun, 'the PVC stays empty: delete it, and restore it again');
    logger.info({ PVC: `${namespace}/${pvc.metadata.name}` }, 'DataDownload made');
    const operationId = downloadOperationId(fromBackup, restore);
    return { item: waiting(pvc, namespace, operationId), operationId };
  }

  /** Restores into the PVC's existing volume. Throws reasons against it before any change. */
  async #bringBack(
    { pvc, fromBackup, present }: Record<'pvc' | 'fromBackup' | 'present', PersistentVolumeClaim>,
    { restore, backup: given, volumeFromBackup }: RestoreInput,
    context: CallContext,
  ): Promise<RestoreOutput> {
    const { client, logger, inPlaceHindrance } = this.#setting;
    const { signal } = context;
    const shown = { PVC: placeOf(present) };
    const backup = given ?? (await findBackup(this.#setting, restore, signal));
    const { annotations = {} } = fromBackup.metadata;
    if (wayOf(fromBackup, backup) !== 'moved' && annotations[SNAPSHOT_NAME] !== undefined) {
      throw notInPlace(present, 'kept');
    }
    if (wayOf(fromBackup, backup) !== 'moved' || annotations[UPLOAD_NAME] === undefined) {
      // Files of pods are restored with their pods; a skipped volume has none.
      logger.warn(shown, 'the PVC is there already, and the backup has no upload of it');
      return {};
    }
    if (!inPlaceHindrance) throw notInPlace(present, 'elsewhere');
    const result = await this.#resultOf(fromBackup, restore, signal);
    const { volumeName: volume = '' } = present.spec;
    const existing = {
      fromBackup,
      present,
      result,
      volumeFromBackup: (await volumeFromBackup?.()) as PersistentVolume | undefined,
      presentVolume:
        volume === ''
          ? undefined
          : await patiently(() => client.find(PVS, { name: volume }, { signal }), signal),
    };
    const download = inPlaceDownload(
      downloadOf(pvc, fromBackup, restore, backup, result),
      existing,
      restore,
    );
    const { namespace = '', name = '' } = download.metadata;
    const find = () => client.find(DATA_DOWNLOADS, { namespace, name }, { signal });
    // A DataDownload of a killed attempt has passed the check and may already be writing.
    if (!(await patiently(find, signal))) {
      const hindrance =
        misfitOf(existing, restore) ??
        (await patiently(() => inPlaceHindrance(download as DataDownload, signal), signal));
      if (hindrance) throw notInPlace(present, hindrance);
    }
    const begun = await this.#downloads.begin(download, context);
    this.#tellCanceled(begun, 'its volume may have files of both: restore it again');
    logger.info(shown, 'DataDownload made, which brings the volume back in place');
    return { operationId: inPlaceOperationId(fromBackup, restore) };
  }

  /** A canceled DataDownload of an earlier try stays canceled: someone requested that. */
  #tellCanceled({ metadata, spec, status }: DataDownload, advice: string): void {
    if (status?.phase !== 'Canceled') return;
    const { namespace, pvc: name } = spec.targetVolume;
    const error = `DataDownload ${placeOf({ metadata })} was canceled, and ${advice}`;
    this.#setting.logger.error(
      { resource: 'persistentvolumeclaims', namespace, name, error },
      'the data of a PVC are not restored',
    );
  }

  async progress(
    operationId: string,
    restore: Restore,
    context: CallContext,
  ): Promise<OperationProgress> {
    const progress = await this.#downloads.progress(restore.metadata, operationId, context);
    // While items are being restored, later PVCs still need their results.
    if (progress.completed && restore.status?.phase !== 'InProgress') {
      await dropResults(this.#setting, restore, context.signal);
    }
    return progress;
  }

  async cancel(operationId: string, restore: Restore, context: CallContext): Promise<void> {
    await this.#downloads.cancel(restore.metadata.namespace ?? '', operationId, context);
    await dropResults(this.#setting, restore, context.signal);
  }

  /**
   * Creation times mislead if the API server's clock was set back. Then the DataDownload decides:
   * its name is unique to this Restore.
   */
  async #isOwn(
    { restore, itemFromBackup }: RestoreInput,
    present: PersistentVolumeClaim,
    signal: AbortSignal,
  ): Promise<boolean> {
    if (!isLabelledBy(restore, present)) return false;
    if (!isOlder(present, restore)) return true;
    const { name, namespace = '', uid } = restore.metadata;
    const ref = { namespace, name: nameFor(name, uid, itemFromBackup.metadata.uid) };
    const { client } = this.#setting;
    const found = await patiently(() => client.find(DATA_DOWNLOADS, ref, { signal }), signal);
    return found !== undefined;
  }

  #find(
    namespace: string,
    name: string,
    signal: AbortSignal,
  ): Promise<PersistentVolumeClaim | undefined> {
    const { client } = this.#setting;
    return patiently(() => client.find(PVCS, { namespace, name }, { signal }), signal);
  }

  async #resultOf(
    fromBackup: PersistentVolumeClaim,
    restore: Restore,
    signal: AbortSignal,
  ): Promise<UploadResult> {
    const { namespace } = restore.metadata;
    const labelSelector = resultsSelector(restore, fromBackup);
    const list = () => this.#setting.client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
    const upload = fromBackup.metadata.annotations?.[UPLOAD_NAME] ?? '';
    const found = await patiently(list, signal);
    const own = found.filter((each) => isResultOf(each, upload, restore));
    const [first, ...more] = own;
    if (!first || more.length > 0) {
      const many = first ? 'multiple DataUpload result cms' : 'no DataUpload result cm';
      const text = `the data of PVC ${placeOf(fromBackup)} cannot be restored: ${many} found with labels ${labelSelector} for DataUpload ${upload}`;
      throw new CodedError('NO_UPLOAD_RESULT', text);
    }
    const text = lookup(first.data, restore.metadata.uid);
    try {
      return JSON.parse(text ?? '') as UploadResult;
    } catch (cause) {
      const what = `ConfigMap ${placeOf(first)} has no DataUpload result of restore ${restore.metadata.name}`;
      throw new CodedError('NO_UPLOAD_RESULT', what, { cause });
    }
  }
}

const targetNamespace = (namespace = '', { spec }: Restore): string =>
  lookup(spec.namespaceMapping, namespace) ?? namespace;

const isLeaving = (present: PersistentVolumeClaim): CodedError =>
  new CodedError(
    'PVC_LEAVING',
    `PVC ${placeOf(present)} is there and being deleted: restore again when it is gone`,
  );

/** Servers put this label on restored objects. */
const isLabelledBy = ({ metadata: { name } }: Restore, { metadata }: PersistentVolumeClaim) =>
  metadata.labels?.[RESTORE_NAME] === validLabel(name);
/** A PVC older than the Restore belongs to an earlier Restore with the same name. */
const isOlder = ({ metadata }: PersistentVolumeClaim, restore: Restore): boolean =>
  Date.parse(metadata.creationTimestamp) < Date.parse(restore.metadata.creationTimestamp);

export const downloadOperationId = (fromBackup: KubeObject, restore: Restore): string =>
  validLabel(`dd-${restore.metadata.uid}.${fromBackup.metadata.uid}`);

const wayOf = ({ metadata }: PersistentVolumeClaim, { spec }: RestoredBackup): string =>
  metadata.annotations?.[SNAPSHOT_WAY] ?? (spec.snapshotMoveData === true ? 'moved' : 'csi');

/** The next backup decides again. */
function withoutWay(pvc: PersistentVolumeClaim): PersistentVolumeClaim {
  const { annotations } = pvc.metadata;
  if (annotations?.[SNAPSHOT_WAY] === undefined) return pvc;
  return {
    ...pvc,
    metadata: { ...pvc.metadata, annotations: without(annotations, SNAPSHOT_WAY) },
  };
}

/** The storage creates an empty volume. */
function withoutVolume(pvc: PersistentVolumeClaim): PersistentVolumeClaim {
  return { ...pvc, spec: without(pvc.spec, 'volumeName', 'dataSource', 'dataSourceRef') };
}

/** The snapshot is restored despite the restore's filters: nothing else would fill the PVC. */
function fromSnapshot(pvc: PersistentVolumeClaim, snapshot: string, name: string): RestoreOutput {
  const item = withMarks(withoutVolume(pvc), { annotations: { [MUST_RESTORE]: 'true' } });
  const dataSource = { apiGroup: SNAPSHOT_GROUP, kind: 'VolumeSnapshot', name };
  return {
    item: { ...item, spec: { ...item.spec, dataSource } } as PersistentVolumeClaim,
    additionalItems: [
      identifier(SNAPSHOT_GROUP, 'volumesnapshots', snapshot, pvc.metadata.namespace),
    ],
  };
}

/**
 * The selector makes the PVC wait: no provisioner fills a PVC with a selector, and only the volume
 * made for this PVC has the label.
 */
function waiting(
  pvc: PersistentVolumeClaim,
  namespace: string,
  operationId: string,
): PersistentVolumeClaim {
  const spec = without(pvc.spec, 'volumeName');
  // Velero uses five random characters. These are the same in a second attempt.
  const suffix = createHash('sha256').update(operationId).digest('hex').slice(0, 5);
  const value = validLabel(`${namespace}.${pvc.metadata.name}.${suffix}`);
  const matchLabels = { ...spec.selector?.matchLabels, [DYNAMIC_PV_RESTORE]: value };
  return { ...pvc, spec: { ...spec, selector: { ...spec.selector, matchLabels } } };
}

function downloadOf(
  pvc: PersistentVolumeClaim,
  fromBackup: PersistentVolumeClaim,
  restore: Restore,
  backup: RestoredBackup,
  result: UploadResult,
): NewObject<DataDownload> {
  const { name, uid, namespace = '' } = restore.metadata;
  const { backupStorageLocation, datamover, snapshotID, sourceNamespace } = result;
  const config = configOf(restore);
  return {
    metadata: {
      name: nameFor(name, uid, fromBackup.metadata.uid),
      namespace,
      labels: {
        [RESTORE_NAME]: validLabel(name),
        [RESTORE_UID]: uid,
        [OPERATION_ID]: downloadOperationId(fromBackup, restore),
        ...NOT_IN_BACKUPS,
      },
      ownerReferences: [
        { apiVersion: apiVersionOf(RESTORES), kind: RESTORES.kind, name, uid, controller: true },
      ],
    },
    spec: {
      targetVolume: {
        pvc: pvc.metadata.name,
        pv: '',
        namespace: targetNamespace(pvc.metadata.namespace, restore),
      },
      backupStorageLocation,
      snapshotID,
      sourceNamespace,
      operationTimeout: snapshotTimeout(backup),
      // Required by Velero 1.19.
      restoreType: '',
      ...(datamover && { datamover }),
      ...(result.nodeOS && { nodeOS: result.nodeOS }),
      ...(result.snapshotSize !== undefined && { snapshotSize: result.snapshotSize }),
      ...(config && { dataMoverConfig: config }),
    },
  };
}

/** Velero: pkg/uploader/util, StoreRestoreConfig. */
function configOf({ spec: { uploaderConfig } }: Restore): Record<string, string> | undefined {
  if (!uploaderConfig) return undefined;
  const { writeSparseFiles, parallelFilesDownload = 0 } = uploaderConfig;
  return {
    WriteSparseFiles: String(writeSparseFiles === true),
    ...(parallelFilesDownload > 0 && { ParallelFilesDownload: String(parallelFilesDownload) }),
  };
}
