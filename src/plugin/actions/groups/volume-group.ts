import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  type NewObject,
  NOT_IN_BACKUPS,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeGroupSnapshotContent,
  type VolumeSnapshot,
  waitGone,
} from '../../../kube/index.ts';
import { changeContent } from '../snapshots/deletion-policy.ts';
import { keepGroup } from './group-handles.ts';
import { isDetached, LOOK_MS, marksFor, membersOf } from './group-members.ts';
import { durationMs, patiently, placeOf, type Setting, snapshotTimeout } from '../settings.ts';

/** PVCs of one namespace with the same value of the backup's group label. */
export interface VolumeGroup {
  readonly key: string;
  readonly value: string;
}

const GONE_MS = 60_000;

export async function findGroup(
  { client }: Setting,
  namespace: string,
  name: string,
  signal: AbortSignal,
): Promise<VolumeGroupSnapshot | undefined> {
  const ref = { namespace, name };
  const find = () => client.find(VOLUME_GROUP_SNAPSHOTS, ref, { signal });
  return patiently(find, signal);
}

/** Creates or finds the backup's group. Throws `FOREIGN_OBJECT` if it has another owner. */
export async function makeGroup(
  setting: Setting,
  { namespace, name, className }: { namespace: string; name: string; className: string },
  { key, value }: VolumeGroup,
  backup: Backup,
  signal: AbortSignal,
): Promise<VolumeGroupSnapshot> {
  const { client, logger } = setting;
  const wanted: NewObject<VolumeGroupSnapshot> = {
    metadata: {
      name,
      namespace,
      labels: { ...marksFor(backup, name).labels, [key]: value, ...NOT_IN_BACKUPS },
      annotations: marksFor(backup, name).annotations,
    },
    spec: {
      source: { selector: { matchLabels: { [key]: value } } },
      volumeGroupSnapshotClassName: className,
    },
  };
  const ref = { namespace, name };
  for (;;) {
    try {
      const create = () => client.create(VOLUME_GROUP_SNAPSHOTS, wanted, { signal });
      const made = await patiently(create, signal);
      logger.info({ VolumeGroupSnapshot: placeOf(made) }, 'VolumeGroupSnapshot created');
      return made;
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    const found = await findGroup(setting, namespace, name, signal);
    if (found?.metadata.deletionTimestamp !== undefined) {
      const { uid } = found.metadata;
      const options = { signal, timeoutMs: GONE_MS };
      await waitGone(client, VOLUME_GROUP_SNAPSHOTS, { ...ref, uid }, options);
    } else if (found) {
      if (found.metadata.labels?.[BACKUP_UID] === backup.metadata.uid) return found;
      const text = `there is a VolumeGroupSnapshot ${placeOf(found)} already, and this backup did not make it: remove it and try again`;
      throw new CodedError('FOREIGN_OBJECT', text);
    }
  }
}

/**
 * Waits until each PVC has a ready snapshot in the group. After the group is deleted, the snapshot
 * controller reports nothing more about its snapshots.
 */
export async function untilThere(
  setting: Setting,
  made: VolumeGroupSnapshot,
  wanted: readonly string[],
  backup: Backup,
  signal: AbortSignal,
): Promise<{ own: Map<string, VolumeSnapshot>; others: VolumeSnapshot[] }> {
  const { namespace = '', name } = made.metadata;
  const until = performance.now() + durationMs(snapshotTimeout(backup));
  let seen = '';
  for (;;) {
    const members = await membersOf(setting, made, backup, signal);
    const own = new Map<string, VolumeSnapshot>();
    for (const each of members) own.set(each.spec.source.persistentVolumeClaimName ?? '', each);
    const missing = wanted.filter((claim) => !own.has(claim));
    const unready = members.filter((each) => !isDetached(each) && !isReady(each));
    const now = await findGroup(setting, namespace, name, signal);
    if (now?.metadata.uid !== made.metadata.uid) {
      const text = `VolumeGroupSnapshot ${placeOf(made)} was deleted while its snapshots were taken`;
      throw new CodedError('SNAPSHOT_GONE', text);
    }
    const { boundVolumeGroupSnapshotContentName: content, readyToUse } = now.status ?? {};
    // Until then the controller may bind the snapshots again from scratch.
    const isBound = content !== undefined && (readyToUse === true || members.every(isDetached));
    // Controllers with older versions may overwrite changes. Wait until nothing changes between two
    // reads.
    const versions = [now, ...members].map(({ metadata }) => metadata.resourceVersion).join();
    const isQuiet = versions === seen;
    seen = versions;
    if (missing.length === 0 && unready.length === 0 && isBound && isQuiet) {
      const others = members.filter(
        (each) => !wanted.includes(each.spec.source.persistentVolumeClaimName ?? ''),
      );
      for (const other of others) own.delete(other.spec.source.persistentVolumeClaimName ?? '');
      return { own, others };
    }
    if (performance.now() > until) {
      throw notTaken(now, backup, { missing, unready });
    }
    await sleep(LOOK_MS, undefined, { signal });
  }
}

/**
 * Removes the group from the cluster, and nothing from the storage. Keeps our own content while the
 * snapshots are needed. If the driver counts a snapshot to a group, the controllers report it only
 * while the group has a content. They delete such a snapshot from the storage only with its whole
 * group. The group's own content cannot be used: a controller may not know its new policy yet and
 * deletes it.
 */
export async function dissolve(
  setting: Setting,
  { metadata }: VolumeGroupSnapshot,
  backup: Backup,
  signal: AbortSignal,
): Promise<void> {
  const { client, logger } = setting;
  const { namespace = '', name, uid } = metadata;
  const group = `${namespace}/${name}`;
  const bound = (await findGroup(setting, namespace, name, signal))?.status
    ?.boundVolumeGroupSnapshotContentName;
  if (bound !== undefined) {
    const retain = ({ spec }: VolumeGroupSnapshotContent) => {
      // Users of a namespace can write a status.
      if (spec.volumeGroupSnapshotRef.uid !== uid) {
        const text = `a VolumeGroupSnapshot claims to be bound to VolumeGroupSnapshotContent ${bound}, which is bound to another one`;
        throw new CodedError('FOREIGN_OBJECT', text);
      }
      return spec.deletionPolicy === 'Retain' ? undefined : { spec: { deletionPolicy: 'Retain' } };
    };
    const own = await changeContent(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, bound, retain, signal);
    if (own) {
      await keepGroup(setting, own, { name, namespace, backup }, marksFor(backup, name), signal);
      const exactly = { signal, uid: own.metadata.uid };
      const drop = () => client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name: bound }, exactly);
      await patiently(drop, signal);
    }
  }
  const remove = () => client.delete(VOLUME_GROUP_SNAPSHOTS, { namespace, name }, { signal, uid });
  await patiently(remove, signal);
  const wait = { signal, timeoutMs: GONE_MS };
  await waitGone(client, VOLUME_GROUP_SNAPSHOTS, { namespace, name, uid }, wait);
  const members = await membersOf(setting, { metadata } as VolumeGroupSnapshot, backup, signal);
  const lost = members.find((each) => each.metadata.deletionTimestamp !== undefined);
  if (lost) {
    const text = `VolumeSnapshot ${placeOf(lost)} was deleted with VolumeGroupSnapshot ${group}`;
    throw new CodedError('SNAPSHOT_GONE', text);
  }
  const fields = { VolumeGroupSnapshot: group, backup: backup.metadata.name };
  logger.info(fields, 'the snapshots of a volume group are taken');
}

/** Deletes the group and its storage data, whatever its class. If it throws, the group stays. */
export async function deleteGroupWithContent(
  { client }: Setting,
  { metadata: { namespace, name, uid } }: VolumeGroupSnapshot,
  signal: AbortSignal,
): Promise<void> {
  const ref = { namespace, name };
  const find = () => client.find(VOLUME_GROUP_SNAPSHOTS, ref, { signal });
  const now = await patiently(find, signal);
  if (now?.metadata.uid !== uid) return;
  const bound = now.status?.boundVolumeGroupSnapshotContentName;
  if (bound !== undefined) {
    const release = ({ spec }: VolumeGroupSnapshotContent) => {
      // Users can write the status of a group.
      const isOwn = spec.volumeGroupSnapshotRef.uid === uid && spec.source?.volumeHandles;
      if (!isOwn || spec.deletionPolicy === 'Delete') return undefined;
      return { spec: { deletionPolicy: 'Delete' } };
    };
    await changeContent(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, bound, release, signal);
  }
  await patiently(() => client.delete(VOLUME_GROUP_SNAPSHOTS, ref, { signal, uid }), signal);
}

const isReady = ({ status }: VolumeSnapshot): boolean =>
  status?.boundVolumeSnapshotContentName !== undefined && status.readyToUse === true;

function notTaken(
  group: VolumeGroupSnapshot,
  backup: Backup,
  { missing, unready }: { missing: readonly string[]; unready: readonly VolumeSnapshot[] },
): CodedError {
  const claims = unready.map(({ spec }) => spec.source.persistentVolumeClaimName ?? '');
  const what =
    missing.length > 0
      ? `no snapshot of PVC ${missing.join(', ')}`
      : claims.length > 0
        ? `the snapshot of PVC ${claims.join(', ')} is not ready; a driver that needs longer needs a longer csiSnapshotTimeout`
        : 'it is not ready';
  const told = [group, ...unready].map(({ status }) => status?.error?.message).find(Boolean);
  const text = `VolumeGroupSnapshot ${placeOf(group)} was not taken within ${snapshotTimeout(backup)}: ${told ?? what}`;
  return new CodedError('GROUP_NOT_TAKEN', text);
}
