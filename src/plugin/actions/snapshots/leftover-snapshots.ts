import { isCode, mapLimited, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  DATA_UPLOADS,
  isFailed,
  isGathering,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeSnapshot,
} from '../../../kube/index.ts';
import { phaseOf, purposeOf } from '../backup-phase.ts';
import { isAbandoned, keepAgain } from './deletion-policy.ts';
import { removeLeftContents, removeStubs } from '../groups/group-contents.ts';
import { deleteGroupWithContent } from '../groups/volume-group.ts';
import { placeOf, type Setting } from '../settings.ts';
import type { Snapshots } from './snapshots.ts';
import { FOR_BACKUP, MOVED, OF_GROUP, RETAINED_UNTIL, SNAPSHOT_HANDLE } from '../velero-names.ts';

/** Concurrent requests of a sweep: the backup itself needs the API server too. Our choice. */
const AT_ONCE_MAX = 4;

export interface Sweep {
  /** The server's namespace: backups of other servers are ignored. */
  readonly namespace: string;
  /**
   * The backup of this process. Snapshots that the process does not hold belong to an earlier one,
   * since Velero starts one for each backup.
   */
  readonly current?: Backup;
  readonly signal: AbortSignal;
}

/**
 * Removes snapshots of killed processes, which nothing else would remove. A snapshot to be moved is
 * left over if it has no upload; otherwise its upload owns it.
 *
 * A snapshot to be kept is left over if its backup takes no more snapshots and did not store it.
 * Then the handle mark is missing, or the backup failed. Users of a namespace can write anything on
 * their snapshots, so a snapshot's labels decide only about snapshots with the same labels.
 */
export async function removeOrphans(
  setting: Setting,
  snapshots: Snapshots,
  sweep: Sweep,
): Promise<void> {
  const { client, logger } = setting;
  const { namespace, signal } = sweep;
  try {
    const labelSelector = MOVED;
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
      if (!snapshots.isHeld(snapshot)) await snapshots.removeUnchanged(snapshot);
    });
    const uids = new Set(orphans.flat().map(({ metadata }) => metadata.uid));
    await putBackPolicies(
      setting,
      (each) => snapshots.isHeld(each) || uids.has(each.metadata.uid),
      sweep,
    );
    await removeOrphanGroups(setting, snapshots, sweep);
    await removeLeftContents(setting, sweep);
    await removeStubs(setting, sweep);
  } catch (error) {
    // The next process tries again; the backup itself continues.
    logger.debug({ reason: messageOf(error) }, 'left-over VolumeSnapshots could not be looked for');
  }
}

/**
 * Restores the policy of released contents. A process was killed between the release and the
 * deletion of their snapshots, and the snapshots got their marks since then. The note does not tell
 * whether that process still runs, so nothing changes for some minutes.
 */
async function putBackPolicies(
  { client, logger }: Setting,
  isRemoved: (snapshot: VolumeSnapshot) => boolean,
  { namespace: ofServer, signal }: Sweep,
): Promise<void> {
  const noted = await client.list(VOLUME_SNAPSHOT_CONTENTS, {
    labelSelector: RETAINED_UNTIL,
    signal,
  });
  for (const content of noted) {
    signal.throwIfAborted();
    if (!isAbandoned(content, client)) continue;
    const { namespace, name = '', uid } = content.spec.volumeSnapshotRef;
    const fields = {
      VolumeSnapshot: `${namespace ?? ''}/${name}`,
      VolumeSnapshotContent: content.metadata.name,
    };
    try {
      const found = await client.find(VOLUME_SNAPSHOTS, { namespace, name }, { signal });
      if (!found || found.metadata.uid !== uid) continue;
      if (found.metadata.deletionTimestamp !== undefined) continue;
      const [server] = found.metadata.annotations?.[FOR_BACKUP]?.split('/') ?? [];
      // The other server's sweep decides about it.
      if (server !== undefined && server !== ofServer) continue;
      if (isRemoved(found)) continue;
      await keepAgain(client, content.metadata.name, found.metadata.uid, signal);
      logger.info(
        fields,
        'the storage keeps a snapshot whose deletion was begun and is no longer wanted',
      );
    } catch (error) {
      signal.throwIfAborted();
      logger.debug(
        { ...fields, reason: messageOf(error) },
        'a later backup looks at the snapshot again',
      );
    }
  }
}

/**
 * Removes VolumeGroupSnapshots of ended backups, with the snapshots they still own. A group exists
 * only while its snapshots are taken. Skips groups of the current backup, which continues with
 * them.
 */
export async function removeOrphanGroups(
  setting: Setting,
  snapshots: Snapshots,
  { namespace, current, signal }: Sweep,
  /** Label selector of the backups. */
  labelSelector: string = BACKUP_UID,
): Promise<void> {
  const { client, logger } = setting;
  let groups: VolumeGroupSnapshot[];
  try {
    groups = await client.list(VOLUME_GROUP_SNAPSHOTS, { labelSelector, signal });
  } catch (error) {
    // Most clusters lack the CRD.
    if (isCode(error, 'KUBE_NOT_FOUND')) return;
    throw error;
  }
  for (const group of groups) {
    const purpose = purposeOf(group, namespace);
    if (!purpose || purpose.uid === current?.metadata.uid) continue;
    const { uid: backupUid, backup: name } = purpose;
    const fields = { VolumeGroupSnapshot: placeOf(group) };
    try {
      const phase = await phaseOf(setting, { namespace, name }, backupUid, signal);
      if (isGathering(phase)) continue;
      await removeGroup(group, setting, snapshots, signal);
      logger.info(fields, 'left-over VolumeGroupSnapshot deleted');
    } catch (error) {
      signal.throwIfAborted();
      logger.warn(
        { ...fields, reason: messageOf(error) },
        'the VolumeGroupSnapshot could not be deleted; a later backup tries again',
      );
    }
  }
}

/** Removes a group with the members it still owns. */
async function removeGroup(
  group: VolumeGroupSnapshot,
  setting: Setting,
  snapshots: Snapshots,
  signal: AbortSignal,
): Promise<void> {
  const { namespace, uid } = group.metadata;
  const all = await setting.client.list(VOLUME_SNAPSHOTS, { namespace, signal });
  const members = all.filter(
    ({ metadata }) => metadata.ownerReferences?.some((owner) => owner.uid === uid) === true,
  );
  await deleteGroupWithContent(setting, group, signal);
  for (const each of members) await snapshots.remove(each);
}

/** The left-over snapshots of `group`, which all have the same purpose. */
async function orphansAmong(
  group: readonly VolumeSnapshot[],
  setting: Setting,
  sweep: Sweep,
): Promise<VolumeSnapshot[]> {
  const { namespace, current, signal } = sweep;
  const purpose = group[0] && purposeOf(group[0], namespace);
  if (!purpose) return [];
  const { uid, backup: name, isMoved } = purpose;
  // A restored snapshot has a content as its source, whatever its labels say.
  const there = group.filter(
    ({ metadata, spec }) =>
      metadata.deletionTimestamp === undefined &&
      spec.source.persistentVolumeClaimName !== undefined,
  );
  const isCurrent = uid === current?.metadata.uid;
  // A later attempt of the same backup takes over the snapshots to be kept.
  if (isCurrent && !isMoved) return [];
  const phase = isCurrent ? '' : await phaseOf(setting, { namespace, name }, uid, signal);
  if (!isCurrent && isGathering(phase)) return [];
  if (!isMoved) {
    const isLeft = ({ metadata }: VolumeSnapshot): boolean =>
      metadata.annotations?.[SNAPSHOT_HANDLE] === undefined || isFailed(phase);
    return asTheyAreNow(there.filter(isLeft), isLeft, setting, sweep);
  }
  const labelSelector = `${BACKUP_UID}=${uid}`;
  const uploads = await setting.client.list(DATA_UPLOADS, { namespace, labelSelector, signal });
  const moved = new Set(
    uploads.map(({ spec }) => `${spec.sourceNamespace}/${spec.csiSnapshot?.volumeSnapshot ?? ''}`),
  );
  // Members of a group that is still being backed up: new snapshots of the rest would be of another
  // moment.
  const isAwaited = ({ metadata }: VolumeSnapshot): boolean =>
    isCurrent && metadata.annotations?.[OF_GROUP] !== undefined;
  const isLeft = (each: VolumeSnapshot): boolean => !moved.has(placeOf(each)) && !isAwaited(each);
  return asTheyAreNow(there.filter(isLeft), isLeft, setting, sweep);
}

/**
 * Keeps only snapshots that are left over in their current version. The list is older than the
 * backup's phase, and the backup may have marked them in between.
 */
async function asTheyAreNow(
  listed: readonly VolumeSnapshot[],
  isLeft: (each: VolumeSnapshot) => boolean,
  { client }: Setting,
  { namespace, signal }: Sweep,
): Promise<VolumeSnapshot[]> {
  const left: VolumeSnapshot[] = [];
  for (const each of listed) {
    const now = await client.find(VOLUME_SNAPSHOTS, each.metadata, { signal });
    if (now?.metadata.uid !== each.metadata.uid) continue;
    if (now.metadata.deletionTimestamp !== undefined) continue;
    const isSame =
      JSON.stringify(purposeOf(now, namespace)) === JSON.stringify(purposeOf(each, namespace));
    if (isSame && isLeft(now)) left.push(now);
  }
  return left;
}
