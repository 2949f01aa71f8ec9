import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  validLabel,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeSnapshot,
} from '../../../kube/index.ts';
import {
  durationMs,
  patiently,
  placeOf,
  type Setting,
  snapshotTimeout,
  withMarks,
} from '../settings.ts';
import { FOR_BACKUP, MOVED, OF_GROUP } from '../velero-names.ts';

export interface Detaching {
  readonly backup: Backup;
  readonly snapshotClass: string;
  readonly signal: AbortSignal;
}

/** Velero's interval between two reads. */
export const LOOK_MS = 1000;
const CONFLICTS_MAX = 5;
/** The snapshot controller adds these to members, and removes them when the group is deleted. */
const GROUP_FINALIZERS = [
  'snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection',
  'snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection',
];

/** Marks of a backup on each object of a group. */
export const marksFor = (backup: Backup, group: string) => ({
  labels: {
    [BACKUP_NAME]: validLabel(backup.metadata.name),
    [BACKUP_UID]: backup.metadata.uid,
    [MOVED]: String(backup.spec.snapshotMoveData === true),
  },
  annotations: { [FOR_BACKUP]: placeOf(backup), [OF_GROUP]: group },
});

/** A snapshot that this backup has taken over from its group. */
export const isDetached = ({ metadata }: VolumeSnapshot): boolean =>
  metadata.annotations?.[OF_GROUP] !== undefined;
/** Whether the snapshot would be deleted with the group. */
const isIn = ({ metadata, status }: VolumeSnapshot, group: VolumeGroupSnapshot): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === group.metadata.uid) === true ||
  status?.volumeGroupSnapshotName !== undefined;

/** Snapshots that the group owns, or owned before this backup took them over. */
export async function membersOf(
  { client }: Setting,
  made: VolumeGroupSnapshot,
  backup: Backup,
  signal: AbortSignal,
): Promise<VolumeSnapshot[]> {
  const { namespace, name, uid } = made.metadata;
  const list = () => client.list(VOLUME_SNAPSHOTS, { namespace, signal });
  return (await patiently(list, signal)).filter(({ metadata }) => {
    const isOwned = metadata.ownerReferences?.some((owner) => owner.uid === uid) === true;
    const isTaken =
      metadata.labels?.[BACKUP_UID] === backup.metadata.uid &&
      metadata.annotations?.[OF_GROUP] === name;
    return isTaken || isOwned;
  });
}

/**
 * Detaches a snapshot from its group, so that it belongs to the backup alone. The group's name is
 * removed first: the snapshot controller makes a group own each snapshot that names it, and deletes
 * owned snapshots with the group. A snapshot without a group needs a class, or its controller
 * ignores it.
 */
async function detach(
  { client }: Setting,
  snapshot: VolumeSnapshot,
  group: VolumeGroupSnapshot,
  { backup, snapshotClass, signal }: Detaching,
): Promise<VolumeSnapshot> {
  const { namespace, name } = snapshot.metadata;
  for (let attempt = 1; ; attempt++) {
    const ref = { namespace, name };
    const now = await patiently(() => client.get(VOLUME_SNAPSHOTS, ref, { signal }), signal);
    if (isDetached(now) && !isIn(now, group)) return now;
    const { ownerReferences = [], finalizers = [] } = now.metadata;
    const own = withMarks(now, marksFor(backup, group.metadata.name));
    const metadata = {
      ...own.metadata,
      ownerReferences: ownerReferences.filter(({ uid }) => uid !== group.metadata.uid),
      finalizers: finalizers.filter((each) => !GROUP_FINALIZERS.includes(each)),
    };
    try {
      if (now.status?.volumeGroupSnapshotName !== undefined) {
        const { resourceVersion } = now.metadata;
        const patch = {
          metadata: { resourceVersion },
          status: { volumeGroupSnapshotName: null },
        };
        const options = { signal, subresource: 'status' };
        const unname = () => client.patch(VOLUME_SNAPSHOTS, ref, patch, options);
        metadata.resourceVersion = (await patiently(unname, signal)).metadata.resourceVersion;
      }
      const spec = { ...own.spec, volumeSnapshotClassName: snapshotClass };
      const changed = { ...own, metadata, spec };
      return await patiently(() => client.replace(VOLUME_SNAPSHOTS, changed, { signal }), signal);
    } catch (error) {
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === CONFLICTS_MAX) throw error;
    }
  }
}

/**
 * Detaches all members, and repeats this for members that a controller with an older version
 * attached again. Returns when no member has changed between two reads.
 */
export async function detachAll(
  setting: Setting,
  members: readonly VolumeSnapshot[],
  group: VolumeGroupSnapshot,
  detaching: Detaching,
): Promise<VolumeSnapshot[]> {
  const { backup, signal } = detaching;
  const until = performance.now() + durationMs(snapshotTimeout(backup));
  for (;;) {
    const detached: VolumeSnapshot[] = [];
    for (const each of members) detached.push(await detach(setting, each, group, detaching));
    await sleep(LOOK_MS, undefined, { signal });
    const now = await membersOf(setting, group, backup, signal);
    if (now.length === members.length && !now.some((each) => isIn(each, group))) return detached;
    if (performance.now() > until) {
      const text = `the snapshots of VolumeGroupSnapshot ${placeOf(group)} could not be taken out of it within ${snapshotTimeout(backup)}: its controllers, or others, change them all the time`;
      throw new CodedError('GROUP_NOT_TAKEN', text);
    }
  }
}
