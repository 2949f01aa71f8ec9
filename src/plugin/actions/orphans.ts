import { isCode, mapLimited, messageOf } from '../../base/index.ts';
import {
  BACKUPS,
  DATA_UPLOADS,
  type KubeObject,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeSnapshot,
} from '../../kube/index.ts';
import type { Backup } from '../contract.ts';
import { placeOf, type Setting } from './setting.ts';
import type { Snapshots } from './snapshots.ts';
import { BACKUP_UID, FOR_BACKUP, MOVED, OF_GROUP } from './velero-names.ts';

/** Phases in which a backup may still be taking snapshots; ours, of whatever process. */
const TAKING = [undefined, '', 'New', 'Queued', 'ReadyToStart', 'InProgress'];
/** Requests of a sweep that are under way at once: the backup itself needs the API server, too. Our choice. */
const AT_ONCE_MAX = 4;

export interface Sweep {
  /** Of the server that this process works for: no other one's backups are looked at. */
  readonly namespace: string;
  /**
   * The backup that this process takes snapshots for: what it does not hold is of a process before it, since Velero has one for each
   * backup.
   */
  readonly current?: Backup;
  readonly signal: AbortSignal;
}

/** What a snapshot says it was taken for. */
interface Purpose {
  readonly uid: string;
  readonly backup: string;
}

/**
 * Removes snapshots that were taken to be moved by a process that was killed before it had made their upload: nobody would ever look at
 * them again. A snapshot with an upload is its upload's, whatever becomes of it. Users of a namespace can write anything on a snapshot
 * of theirs, so what one says decides about those alone that say the same.
 */
export async function removeOrphans(
  setting: Setting,
  snapshots: Snapshots,
  sweep: Sweep,
): Promise<void> {
  const { client, logger } = setting;
  const { namespace, signal } = sweep;
  try {
    const labelSelector = `${MOVED}=true`;
    const found = await client.list(VOLUME_SNAPSHOTS, { labelSelector, signal });
    const byPurpose = Map.groupBy(found, (each) => JSON.stringify(purposeOf(each, namespace)));
    const orphans = await mapLimited(byPurpose.values(), AT_ONCE_MAX, async (group) => {
      try {
        return await orphansAmong(group, setting, sweep);
      } catch (error) {
        signal.throwIfAborted();
        const fields = { VolumeSnapshots: group.map(placeOf), reason: messageOf(error) };
        logger.debug(fields, 'it is not known whether VolumeSnapshots are left over');
        return [];
      }
    });
    await mapLimited(orphans.flat(), AT_ONCE_MAX, async (snapshot) => {
      signal.throwIfAborted();
      if (!snapshots.isHeld(snapshot)) await snapshots.remove(snapshot);
    });
    await removeOrphanGroups(setting, sweep);
  } catch (error) {
    // The next process tries again; the backup itself goes on.
    logger.debug({ reason: messageOf(error) }, 'left-over VolumeSnapshots could not be looked for');
  }
}

/**
 * VolumeGroupSnapshots of backups that are over: each is there only while its snapshots are taken. What it still owns goes with it.
 * One of the current backup is gone on with.
 */
async function removeOrphanGroups(
  setting: Setting,
  { namespace, current, signal }: Sweep,
): Promise<void> {
  const { client, logger } = setting;
  let groups: VolumeGroupSnapshot[];
  try {
    groups = await client.list(VOLUME_GROUP_SNAPSHOTS, { labelSelector: BACKUP_UID, signal });
  } catch (error) {
    // Most clusters have no such kind.
    if (isCode(error, 'KUBE_NOT_FOUND')) return;
    throw error;
  }
  for (const group of groups) {
    const purpose = purposeOf(group, namespace);
    if (!purpose || purpose.uid === current?.metadata.uid) continue;
    const { uid: backupUid, backup: name } = purpose;
    if (await isTaking(setting, { namespace, name }, backupUid, signal)) continue;
    const { uid } = group.metadata;
    await client.delete(VOLUME_GROUP_SNAPSHOTS, group.metadata, { signal, uid });
    logger.info({ VolumeGroupSnapshot: placeOf(group) }, 'left-over VolumeGroupSnapshot deleted');
  }
}

/** Null for one of another server, or that does not say. */
function purposeOf({ metadata }: KubeObject, ofServer: string): Purpose | null {
  const uid = metadata.labels?.[BACKUP_UID] ?? '';
  const [namespace, backup = ''] = metadata.annotations?.[FOR_BACKUP]?.split('/') ?? [];
  return uid !== '' && backup !== '' && namespace === ofServer ? { uid, backup } : null;
}

/** Those without an upload; `group` says the same purpose. */
async function orphansAmong(
  group: readonly VolumeSnapshot[],
  setting: Setting,
  { namespace, current, signal }: Sweep,
): Promise<VolumeSnapshot[]> {
  const purpose = group[0] && purposeOf(group[0], namespace);
  if (!purpose) return [];
  const { uid, backup: name } = purpose;
  if (uid !== current?.metadata.uid && (await isTaking(setting, { namespace, name }, uid, signal)))
    return [];
  const labelSelector = `${BACKUP_UID}=${uid}`;
  const uploads = await setting.client.list(DATA_UPLOADS, { namespace, labelSelector, signal });
  const moved = new Set(
    uploads.map(({ spec }) => `${spec.sourceNamespace}/${spec.csiSnapshot?.volumeSnapshot ?? ''}`),
  );
  // Of a group whose members are still being backed up: another snapshot of the rest would be of another moment.
  const isAwaited = ({ metadata }: VolumeSnapshot): boolean =>
    uid === current?.metadata.uid && metadata.annotations?.[OF_GROUP] !== undefined;
  return group.filter(
    (each) =>
      each.metadata.deletionTimestamp === undefined &&
      !moved.has(placeOf(each)) &&
      !isAwaited(each),
  );
}

async function isTaking(
  { client }: Setting,
  ref: { readonly namespace: string; readonly name: string },
  uid: string,
  signal: AbortSignal,
): Promise<boolean> {
  try {
    const backup: Backup = (await client.get(BACKUPS, ref, { signal })) as Backup;
    return backup.metadata.uid === uid && TAKING.includes(backup.status?.phase);
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return false;
    throw error;
  }
}
