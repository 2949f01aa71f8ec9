import { CodedError, isCode, lookup, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  type NewObject,
  NOT_IN_BACKUPS,
  type PersistentVolumeClaim,
  STORAGE_CLASSES,
  validLabel,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
  waitFor,
  waitGone,
} from '../../../kube/index.ts';
import { goesOn } from '../backup-phase.ts';
import { changeContent, keepAgain, releasedNow } from './deletion-policy.ts';
import {
  askOnce,
  durationMs,
  nameFor,
  patiently,
  placeOf,
  type Setting,
  snapshotTimeout,
  without,
} from '../settings.ts';
import { snapshotClassFor } from './snapshot-class.ts';
import { FOR_BACKUP, MOVED, OF_GROUP, SNAPSHOT_HANDLE } from '../velero-names.ts';
import type { PlannedBackup } from '../volume-choice.ts';

export interface CutSnapshot {
  readonly snapshot: VolumeSnapshot;
  readonly content: VolumeSnapshotContent;
}

/** Time limit for an object that is being deleted. */
const GONE_MS = 60_000;
/** Not awaited by a caller: the host may already be gone. */
const CLEAN_UP_MS = 30_000;
/** Attempts to delete a snapshot while others change it. Our choice. */
const REMOVALS_MAX = 5;

/** VolumeSnapshots of PVCs for a backup. A second attempt finds them by their stable names. */
export class Snapshots {
  readonly #setting: Setting;
  /** Snapshots in use by this process, as `namespace/name`: they are not left over. */
  readonly #held = new Set<string>();

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  isHeld(snapshot: VolumeSnapshot): boolean {
    return this.#held.has(placeOf(snapshot));
  }

  /**
   * Takes a snapshot and calls the task as soon as the storage has a handle. If the task or an
   * earlier step fails, or the host goes away, removes the snapshot. Exception: another server
   * continues the backup and may already use the snapshot.
   */
  async take<T>(
    pvc: PersistentVolumeClaim,
    backup: PlannedBackup,
    signal: AbortSignal,
    task: (cut: CutSnapshot) => Promise<T>,
    /** Creates the snapshot in another way: together with others. */
    make?: () => Promise<VolumeSnapshot>,
  ): Promise<T> {
    const place = `${pvc.metadata.namespace ?? ''}/${snapshotName(pvc, backup)}`;
    this.#held.add(place);
    let made: VolumeSnapshot | undefined;
    try {
      made = make ? await make() : await this.#make(pvc, backup, signal);
      return await task(await this.#untilCut(made, backup, signal));
    } catch (error) {
      if (signal.aborted && (await goesOn(this.#setting, backup))) throw error;
      if (!make) await this.#removeOwn(pvc, backup);
      else if (made) await this.remove(made);
      throw error;
    } finally {
      this.#held.delete(place);
    }
  }

  async #make(
    pvc: PersistentVolumeClaim,
    backup: PlannedBackup,
    signal: AbortSignal,
  ): Promise<VolumeSnapshot> {
    const { client, logger } = this.#setting;
    const wanted = await this.#wanted(pvc, backup, signal);
    const { namespace, name = '' } = wanted.metadata;
    const ref = { namespace, name };
    for (;;) {
      try {
        const made = await patiently(
          () => client.create(VOLUME_SNAPSHOTS, wanted, { signal }),
          signal,
        );
        logger.info({ VolumeSnapshot: placeOf(made) }, 'VolumeSnapshot created');
        return made;
      } catch (error) {
        if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      }
      const found = await patiently(() => client.find(VOLUME_SNAPSHOTS, ref, { signal }), signal);
      // A snapshot of an interrupted attempt, which is being deleted.
      if (found?.metadata.deletionTimestamp !== undefined) {
        const { uid } = found.metadata;
        await waitGone(client, VOLUME_SNAPSHOTS, { ...ref, uid }, { signal, timeoutMs: GONE_MS });
      } else if (found) {
        assertOfBackup(found, pvc, backup);
        logger.info(
          { VolumeSnapshot: placeOf(found) },
          'VolumeSnapshot of an earlier attempt found',
        );
        return found;
      }
    }
  }

  async #wanted(
    pvc: PersistentVolumeClaim,
    backup: PlannedBackup,
    signal: AbortSignal,
  ): Promise<NewObject<VolumeSnapshot>> {
    const { client } = this.#setting;
    const { name, namespace, labels } = pvc.metadata;
    const storageClass = pvc.spec.storageClassName ?? '';
    const { provisioner } = await askOnce(
      this.#setting,
      backup,
      `storageclasses/${storageClass}`,
      () =>
        patiently(() => client.get(STORAGE_CLASSES, { name: storageClass }, { signal }), signal),
    );
    const chosen = await snapshotClassFor(provisioner, pvc, backup, this.#setting, signal);
    return {
      metadata: {
        name: snapshotName(pvc, backup),
        ...(namespace !== undefined && { namespace }),
        labels: {
          // Users of the PVC must not set these marks.
          ...without(labels ?? {}, MOVED, FOR_BACKUP),
          [BACKUP_NAME]: validLabel(backup.metadata.name),
          [BACKUP_UID]: backup.metadata.uid,
          [MOVED]: String(backup.spec.snapshotMoveData === true),
          // A snapshot that is only there to be moved belongs to no backup.
          ...(backup.spec.snapshotMoveData === true && NOT_IN_BACKUPS),
        },
        annotations: { [FOR_BACKUP]: placeOf(backup) },
      },
      spec: {
        source: { persistentVolumeClaimName: name },
        volumeSnapshotClassName: chosen.metadata.name,
      },
    };
  }

  /** Waits until the storage has a handle. From then on the volume may change. */
  async #untilCut(
    snapshot: VolumeSnapshot,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<CutSnapshot> {
    const { client } = this.#setting;
    const { namespace, name } = snapshot.metadata;
    const timeoutMs = durationMs(snapshotTimeout(backup));
    let told = '';
    const gone = (): CodedError =>
      new CodedError('SNAPSHOT_GONE', `VolumeSnapshot ${placeOf(snapshot)} was deleted`);
    try {
      const startMs = performance.now();
      const content = await waitFor(
        client,
        VOLUME_SNAPSHOTS,
        { namespace, name },
        (now) => {
          if (!now) throw gone();
          told = now.status?.error?.message ?? told;
          return now.status?.boundVolumeSnapshotContentName;
        },
        { signal, timeoutMs },
      );
      const leftMs = Math.max(1, timeoutMs - (performance.now() - startMs));
      const cut = await waitFor(
        client,
        VOLUME_SNAPSHOT_CONTENTS,
        { name: content },
        (now) => {
          told = now?.status?.error?.message ?? told;
          return now?.status?.snapshotHandle ? now : undefined;
        },
        { signal, timeoutMs: leftMs },
      );
      assertBound(cut, snapshot);
      return { snapshot, content: cut };
    } catch (cause) {
      if (!isCode(cause, 'WAIT_TIMEOUT')) throw cause;
      const why =
        told === ''
          ? `Timed out awaiting reconciliation of VolumeSnapshot ${placeOf(snapshot)} within ${snapshotTimeout(backup)}`
          : `CSI got timed out with error: ${told}`;
      throw new CodedError('SNAPSHOT_TIMEOUT', why, { cause });
    }
  }

  /** Also removes a snapshot whose create request got no answer. */
  async #removeOwn(pvc: PersistentVolumeClaim, backup: Backup): Promise<void> {
    const ref = { namespace: pvc.metadata.namespace, name: snapshotName(pvc, backup) };
    await this.#removeIf(ref, (found) => isOfBackup(found, pvc, backup));
  }

  /** Removes a snapshot and its storage data, whatever its class. Logs failures, never throws. */
  remove({ metadata: { namespace, name, uid } }: VolumeSnapshot): Promise<void> {
    return this.#removeIf({ namespace, name }, ({ metadata }) => metadata.uid === uid);
  }

  /** Like {@link remove}, but keeps a snapshot whose marks have changed since it was read. */
  removeUnchanged(snapshot: VolumeSnapshot): Promise<void> {
    const { namespace, name, uid } = snapshot.metadata;
    const marks = marksOf(snapshot);
    return this.#removeIf(
      { namespace, name },
      (found) => found.metadata.uid === uid && marksOf(found) === marks,
    );
  }

  async #removeIf(
    ref: { readonly namespace: string | undefined; readonly name: string },
    isMeant: (found: VolumeSnapshot) => boolean,
  ): Promise<void> {
    const { client, logger } = this.#setting;
    const signal = AbortSignal.timeout(CLEAN_UP_MS);
    const VolumeSnapshot = `${ref.namespace ?? ''}/${ref.name}`;
    try {
      for (let attempt = 1; attempt <= REMOVALS_MAX; attempt++) {
        const found = await patiently(() => client.find(VOLUME_SNAPSHOTS, ref, { signal }), signal);
        if (!found) return;
        if (!isMeant(found)) {
          // The snapshot got its marks after its content was released.
          const content = found.status?.boundVolumeSnapshotContentName;
          if (attempt > 1 && content !== undefined)
            await keepAgain(client, content, found.metadata.uid, signal);
          return;
        }
        await this.#deleteWithContent(found, signal);
        const { uid, resourceVersion } = found.metadata;
        // Delete only the version that was read: controllers write to it, and others may mark it.
        const options = { signal, uid, resourceVersion };
        const remove = () => client.delete(VOLUME_SNAPSHOTS, ref, options);
        if (!(await patiently(remove, signal))) continue;
        logger.info({ VolumeSnapshot }, 'VolumeSnapshot deleted');
        return;
      }
      throw new Error('others change it all the time');
    } catch (error) {
      const fields = { VolumeSnapshot, reason: messageOf(error) };
      logger.warn(fields, 'the VolumeSnapshot could not be deleted; a later backup tries again');
    }
  }

  /** From here on, deleting the snapshot also deletes its data in the storage. */
  async #deleteWithContent(snapshot: VolumeSnapshot, signal: AbortSignal): Promise<void> {
    const { metadata, status } = snapshot;
    const { client, logger } = this.#setting;
    const name = status?.boundVolumeSnapshotContentName;
    if (name === undefined) return;
    const release = (content: VolumeSnapshotContent) => {
      // Users can write the status of a snapshot.
      if (content.spec.volumeSnapshotRef.uid !== metadata.uid) return undefined;
      if (content.spec.deletionPolicy === 'Delete') return undefined;
      if (isCutFor(snapshot, content)) return releasedNow(client);
      const fields = { VolumeSnapshot: placeOf(snapshot), VolumeSnapshotContent: name };
      logger.warn(fields, 'the storage keeps a snapshot that was not cut for its VolumeSnapshot');
      return undefined;
    };
    await changeContent(client, VOLUME_SNAPSHOT_CONTENTS, name, release, signal);
  }
}

/**
 * Whether the storage cut the snapshot for this VolumeSnapshot. A snapshot of a stored backup
 * existed before. Contents of group members also name a handle; only the snapshot controller writes
 * the group into their status.
 */
const isCutFor = (snapshot: VolumeSnapshot, content: VolumeSnapshotContent): boolean =>
  snapshot.spec.source.persistentVolumeClaimName !== undefined &&
  (content.spec.source.snapshotHandle === undefined ||
    content.status?.volumeGroupSnapshotHandle !== undefined);

export const snapshotName = (pvc: PersistentVolumeClaim, backup: Backup): string =>
  nameFor(`velero-${pvc.metadata.name}`, backup.metadata.uid, pvc.metadata.uid);

/** Whether this backup took and keeps the snapshot: not moved, not of another backup or a user. */
export const isKeptBy = ({ metadata }: VolumeSnapshot, backup: Backup): boolean =>
  metadata.labels?.[BACKUP_UID] === backup.metadata.uid && metadata.labels[MOVED] !== 'true';

/** The marks that decide whether the snapshot is needed. */
const marksOf = ({ metadata: { labels, annotations } }: VolumeSnapshot): string =>
  JSON.stringify([
    [BACKUP_UID, MOVED].map((key) => lookup(labels, key)),
    [FOR_BACKUP, SNAPSHOT_HANDLE, OF_GROUP].map((key) => lookup(annotations, key)),
  ]);

function isOfBackup(found: VolumeSnapshot, pvc: PersistentVolumeClaim, backup: Backup): boolean {
  const source = found.spec.source.persistentVolumeClaimName;
  const uid = found.metadata.labels?.[BACKUP_UID];
  return uid === backup.metadata.uid && source === pvc.metadata.name;
}

/** Throws `FOREIGN_OBJECT` if this backup did not create the snapshot of this PVC. */
function assertOfBackup(found: VolumeSnapshot, pvc: PersistentVolumeClaim, backup: Backup): void {
  if (isOfBackup(found, pvc, backup)) return;
  const text = `there is a VolumeSnapshot ${placeOf(found)} already, and this backup did not make it: remove it and try again`;
  throw new CodedError('FOREIGN_OBJECT', text);
}

/**
 * Throws `FOREIGN_OBJECT` if the content belongs to another snapshot: users of a namespace can
 * write the status of a snapshot, but not a content.
 */
export function assertBound(
  { metadata, spec }: VolumeSnapshotContent,
  snapshot: VolumeSnapshot,
): void {
  if (spec.volumeSnapshotRef.uid === snapshot.metadata.uid) return;
  const text = `VolumeSnapshot ${placeOf(snapshot)} claims to be bound to VolumeSnapshotContent ${metadata.name}, which is bound to another one`;
  throw new CodedError('FOREIGN_OBJECT', text);
}
