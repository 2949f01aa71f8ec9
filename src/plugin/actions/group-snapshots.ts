import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  type NewObject,
  type PersistentVolumeClaim,
  PVCS,
  validLabel,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_GROUP_SNAPSHOTS,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeGroupSnapshotContent,
  type VolumeSnapshot,
  waitGone,
} from '../../kube/index.ts';
import type { Backup } from '../contract.ts';
import { changeContent } from './deletion-policy.ts';
import { contentOfGroup } from './group-contents.ts';
import { keepGroup } from './group-handles.ts';
import { driverOf, type GroupMember, groupClassFor } from './group-class.ts';
import {
  durationMs,
  nameFor,
  patiently,
  placeOf,
  type Setting,
  snapshotTimeout,
  withMarks,
} from './setting.ts';
import { snapshotClassFor } from './snapshot-class.ts';
import type { Snapshots } from './snapshots.ts';
import { BACKUP_NAME, BACKUP_UID, FOR_BACKUP, MOVED, OF_GROUP } from './velero-names.ts';
import type { PlannedBackup, PlannedSnapshot, VolumeChoice } from './volume-choice.ts';

/** PVCs of one namespace with the same value of the backup's label. */
export interface VolumeGroup {
  readonly key: string;
  readonly value: string;
}

interface Detaching {
  readonly backup: Backup;
  readonly snapshotClass: string;
  readonly signal: AbortSignal;
}

/** As long as Velero waits between two looks. */
const LOOK_MS = 1000;
const GONE_MS = 60_000;
const CLEAN_UP_MS = 30_000;
const CONFLICTS_MAX = 5;
/** The snapshot controller puts these on members, and takes them off when the group goes. */
const GROUP_FINALIZERS = [
  'snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection',
  'snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection',
];

/** Undefined for a PVC that is snapshotted by itself. */
export function groupOf(pvc: PersistentVolumeClaim, { spec }: Backup): VolumeGroup | undefined {
  const key = spec.volumeGroupSnapshotLabelKey ?? '';
  const value = pvc.metadata.labels?.[key] ?? '';
  return key === '' || value === '' ? undefined : { key, value };
}

/**
 * Snapshots of all volumes of a group at one moment, once for each group and backup (Velero v1.18.3: pkg/backup/actions/csi/pvc_action.go,
 * getVolumeSnapshotReference). The group is only there to cut them: it is removed, and its snapshots stay, each as if it had been
 * taken by itself. What the storage has of the group goes when the last upload is over, or with the backup. After a failure nothing of it is left, and the other members fail with the same error at once.
 */
export class GroupSnapshots {
  readonly #setting: Setting;
  readonly #choice: VolumeChoice;
  readonly #snapshots: Snapshots;
  /** By name and namespace of the VolumeGroupSnapshot; by name of the PVC. */
  readonly #cuts = new Map<string, Promise<ReadonlyMap<string, VolumeSnapshot>>>();

  constructor(setting: Setting, choice: VolumeChoice, snapshots: Snapshots) {
    this.#setting = setting;
    this.#choice = choice;
    this.#snapshots = snapshots;
  }

  /** The snapshot of one member. The first one asked for cuts those of all. */
  async snapshotOf(
    pvc: PersistentVolumeClaim,
    group: VolumeGroup,
    backup: PlannedBackup,
    signal: AbortSignal,
  ): Promise<VolumeSnapshot> {
    const { namespace = '', name } = pvc.metadata;
    const key = `${namespace}/${groupName(group, backup, namespace)}`;
    let cut = this.#cuts.get(key);
    if (!cut) {
      cut = this.#cut(pvc, group, backup, signal);
      this.#cuts.set(key, cut);
      // One that was given up says nothing about the group.
      cut.catch(() => signal.aborted && this.#cuts.delete(key));
    }
    const snapshot = (await cut).get(name);
    if (snapshot) return snapshot;
    const text = `PVC ${placeOf(pvc)} was not in group ${group.value} when its snapshots were taken`;
    throw new CodedError('NOT_IN_GROUP', text);
  }

  async #cut(
    pvc: PersistentVolumeClaim,
    group: VolumeGroup,
    backup: PlannedBackup,
    signal: AbortSignal,
  ): Promise<ReadonlyMap<string, VolumeSnapshot>> {
    const { namespace = '' } = pvc.metadata;
    const name = groupName(group, backup, namespace);
    const earlier = await this.#ofEarlier(namespace, name, backup, signal);
    const begun = await this.#find(namespace, name, signal);
    const isOver = !begun || begun.metadata.deletionTimestamp !== undefined;
    if (earlier.size > 0 && isOver) {
      // All were cut by a process that has ended since. A PVC that was not among them gets none: a second group would be of another
      // moment, and its failure would remove the snapshots of the first one.
      if (await contentOfGroup(this.#setting, name, backup, signal)) return earlier;
      // That process had failed, and was ended while it removed them.
      for (const each of earlier.values()) await this.#snapshots.remove(each);
    }
    const members = await this.#members(namespace, group, backup, signal);
    const driver = driverOf(members);
    const className = await groupClassFor(driver, pvc, backup, this.#setting, signal);
    const { metadata } = await snapshotClassFor(driver, pvc, backup, this.#setting, signal);
    let made: VolumeGroupSnapshot | undefined;
    try {
      made = await this.#make({ namespace, name, className }, group, backup, signal);
      const wanted = members.map(({ claim }) => claim.metadata.name);
      const { own, others } = await this.#untilThere(made, wanted, backup, signal);
      const all = await this.#detachAll([...own.values(), ...others], made, {
        backup,
        snapshotClass: metadata.name,
        signal,
      });
      await this.#dissolve(made, backup, signal);
      // Of PVCs that a policy leaves out: the group's selector cannot.
      for (const other of others) await this.#snapshots.remove(other);
      const detached = new Map<string, VolumeSnapshot>();
      for (const [claim, { metadata }] of own) {
        const snapshot = all.find((each) => each.metadata.uid === metadata.uid);
        if (snapshot) detached.set(claim, snapshot);
      }
      return detached;
    } catch (error) {
      if (made) await this.#removeAll(made, backup);
      throw error;
    }
  }

  async #find(
    namespace: string,
    name: string,
    signal: AbortSignal,
  ): Promise<VolumeGroupSnapshot | undefined> {
    const ref = { namespace, name };
    const find = () => this.#setting.client.find(VOLUME_GROUP_SNAPSHOTS, ref, { signal });
    return patiently(find, signal);
  }

  /** Those that are this backup's already. */
  async #ofEarlier(
    namespace: string,
    name: string,
    { metadata }: Backup,
    signal: AbortSignal,
  ): Promise<Map<string, VolumeSnapshot>> {
    const labelSelector = `${BACKUP_UID}=${metadata.uid}`;
    const list = () =>
      this.#setting.client.list(VOLUME_SNAPSHOTS, { namespace, labelSelector, signal });
    const found = (await patiently(list, signal)).filter(
      (each) =>
        each.metadata.annotations?.[OF_GROUP] === name &&
        each.metadata.deletionTimestamp === undefined,
    );
    return new Map(found.map((each) => [each.spec.source.persistentVolumeClaimName ?? '', each]));
  }

  async #members(
    namespace: string,
    { key, value }: VolumeGroup,
    backup: PlannedBackup,
    signal: AbortSignal,
  ): Promise<GroupMember[]> {
    const { client, logger } = this.#setting;
    const labelSelector = `${key}=${value}`;
    const list = () => client.list(PVCS, { namespace, labelSelector, signal });
    const members: GroupMember[] = [];
    for (const claim of await patiently(list, signal)) {
      const planned = await this.#choice.snapshotOf(claim, backup.original ?? backup, signal);
      if (planned && !isLeftToOthers(planned)) {
        assertSameWay(claim, value, planned.backup, backup);
        members.push({ claim, volume: planned.pv });
      } else {
        const fields = { PVC: placeOf(claim), group: value };
        logger.warn(
          fields,
          'a PVC has the label of a volume group, and no snapshot is wanted of it',
        );
      }
    }
    return members;
  }

  async #make(
    { namespace, name, className }: { namespace: string; name: string; className: string },
    { key, value }: VolumeGroup,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<VolumeGroupSnapshot> {
    const { client, logger } = this.#setting;
    const wanted: NewObject<VolumeGroupSnapshot> = {
      metadata: {
        name,
        namespace,
        labels: { ...marksFor(backup, name).labels, [key]: value },
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
      const found = await this.#find(namespace, name, signal);
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
   * Waits until each of the PVCs has a snapshot in the group that is ready: the snapshot controller tells nothing more about a snapshot
   * whose group is gone.
   */
  async #untilThere(
    made: VolumeGroupSnapshot,
    wanted: readonly string[],
    backup: Backup,
    signal: AbortSignal,
  ): Promise<{ own: Map<string, VolumeSnapshot>; others: VolumeSnapshot[] }> {
    const { namespace = '', name } = made.metadata;
    const until = performance.now() + durationMs(snapshotTimeout(backup));
    let seen = '';
    for (;;) {
      const members = await this.#membersOf(made, backup, signal);
      const own = new Map<string, VolumeSnapshot>();
      for (const each of members) own.set(each.spec.source.persistentVolumeClaimName ?? '', each);
      const missing = wanted.filter((claim) => !own.has(claim));
      const unready = members.filter((each) => !isDetached(each) && !isReady(each));
      const now = await this.#find(namespace, name, signal);
      if (now?.metadata.uid !== made.metadata.uid) {
        const text = `VolumeGroupSnapshot ${placeOf(made)} was deleted while its snapshots were taken`;
        throw new CodedError('SNAPSHOT_GONE', text);
      }
      const { boundVolumeGroupSnapshotContentName: content, readyToUse } = now.status ?? {};
      // Until then its controller may bind the snapshots anew, from nothing.
      const isBound = content !== undefined && (readyToUse === true || members.every(isDetached));
      // Controllers that have read older versions write what was before: none changes anything between two looks.
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

  /** Snapshots that the group owns, or owned before this backup took them over. */
  async #membersOf(
    made: VolumeGroupSnapshot,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<VolumeSnapshot[]> {
    const { namespace, name, uid } = made.metadata;
    const list = () => this.#setting.client.list(VOLUME_SNAPSHOTS, { namespace, signal });
    return (await patiently(list, signal)).filter(({ metadata }) => {
      const isOwned = metadata.ownerReferences?.some((owner) => owner.uid === uid) === true;
      const isTaken =
        metadata.labels?.[BACKUP_UID] === backup.metadata.uid &&
        metadata.annotations?.[OF_GROUP] === name;
      return isTaken || isOwned;
    });
  }

  /**
   * From here on it does not go with the group, and is the backup's as any other one. The name of the group goes first: the snapshot
   * controller makes a group own each snapshot that names it, and deletes what a group owns with it. A snapshot of no group needs a
   * class, without which its controller does nothing for it.
   */
  async #detach(
    snapshot: VolumeSnapshot,
    group: VolumeGroupSnapshot,
    { backup, snapshotClass, signal }: Detaching,
  ): Promise<VolumeSnapshot> {
    const { client } = this.#setting;
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
   * Detaches all of them, and again those that a controller which had read an older version has given back meanwhile. Returns when none
   * has changed between two looks.
   */
  async #detachAll(
    members: readonly VolumeSnapshot[],
    group: VolumeGroupSnapshot,
    detaching: Detaching,
  ): Promise<VolumeSnapshot[]> {
    const { backup, signal } = detaching;
    const until = performance.now() + durationMs(snapshotTimeout(backup));
    for (;;) {
      const detached: VolumeSnapshot[] = [];
      for (const each of members) detached.push(await this.#detach(each, group, detaching));
      await sleep(LOOK_MS, undefined, { signal });
      const now = await this.#membersOf(group, backup, signal);
      if (now.length === members.length && !now.some((each) => isIn(each, group))) return detached;
      if (performance.now() > until) {
        const text = `the snapshots of VolumeGroupSnapshot ${placeOf(group)} could not be taken out of it within ${snapshotTimeout(backup)}: its controllers, or others, change them all the time`;
        throw new CodedError('GROUP_NOT_TAKEN', text);
      }
    }
  }

  /**
   * Removes the group from the cluster, and nothing from the storage. A content of ours stays for as long as somebody needs the snapshots:
   * the controllers tell of a snapshot that the driver counts to a group only while there is a content of that group, and delete it from
   * the storage only with all of the group. It is not the group's own, which a controller that does not yet know of its new policy deletes.
   */
  async #dissolve(
    { metadata }: VolumeGroupSnapshot,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, logger } = this.#setting;
    const { namespace = '', name, uid } = metadata;
    const group = `${namespace}/${name}`;
    const bound = (await this.#find(namespace, name, signal))?.status
      ?.boundVolumeGroupSnapshotContentName;
    if (bound !== undefined) {
      const retain = ({ spec }: VolumeGroupSnapshotContent) => {
        // Users of a namespace can write a status.
        if (spec.volumeGroupSnapshotRef.uid !== uid) {
          const text = `a VolumeGroupSnapshot claims to be bound to VolumeGroupSnapshotContent ${bound}, which is bound to another one`;
          throw new CodedError('FOREIGN_OBJECT', text);
        }
        return spec.deletionPolicy === 'Retain'
          ? undefined
          : { spec: { deletionPolicy: 'Retain' } };
      };
      const own = await changeContent(
        client,
        VOLUME_GROUP_SNAPSHOT_CONTENTS,
        bound,
        retain,
        signal,
      );
      if (own) {
        await keepGroup(
          this.#setting,
          own,
          { name, namespace, backup },
          marksFor(backup, name),
          signal,
        );
        const exactly = { signal, uid: own.metadata.uid };
        const drop = () => client.delete(VOLUME_GROUP_SNAPSHOT_CONTENTS, { name: bound }, exactly);
        await patiently(drop, signal);
      }
    }
    const remove = () =>
      client.delete(VOLUME_GROUP_SNAPSHOTS, { namespace, name }, { signal, uid });
    await patiently(remove, signal);
    const wait = { signal, timeoutMs: GONE_MS };
    await waitGone(client, VOLUME_GROUP_SNAPSHOTS, { namespace, name, uid }, wait);
    const members = await this.#membersOf({ metadata } as VolumeGroupSnapshot, backup, signal);
    const lost = members.find((each) => each.metadata.deletionTimestamp !== undefined);
    if (lost) {
      const text = `VolumeSnapshot ${placeOf(lost)} was deleted with VolumeGroupSnapshot ${group}`;
      throw new CodedError('SNAPSHOT_GONE', text);
    }
    const fields = { VolumeGroupSnapshot: group, backup: backup.metadata.name };
    logger.info(fields, 'the snapshots of a volume group are taken');
  }

  /** What a failed attempt has made; the storage's snapshots too. Says what it could not do, and does not fail. */
  async #removeAll(made: VolumeGroupSnapshot, backup: Backup): Promise<void> {
    const { logger } = this.#setting;
    const signal = AbortSignal.timeout(CLEAN_UP_MS);
    try {
      const members = await this.#membersOf(made, backup, signal);
      await deleteGroupWithContent(this.#setting, made, signal);
      for (const each of members) await this.#snapshots.remove(each);
    } catch (error) {
      const fields = { VolumeGroupSnapshot: placeOf(made), reason: messageOf(error) };
      logger.warn(fields, 'the VolumeGroupSnapshot could not be deleted: remove it by hand');
    }
  }
}

/** Also what the storage has of it, whatever its class says. Throws where it cannot, and then the group is still there. */
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
      // What the status of a group says could have been written by others.
      const isOwn = spec.volumeGroupSnapshotRef.uid === uid && spec.source?.volumeHandles;
      if (!isOwn || spec.deletionPolicy === 'Delete') return undefined;
      return { spec: { deletionPolicy: 'Delete' } };
    };
    await changeContent(client, VOLUME_GROUP_SNAPSHOT_CONTENTS, bound, release, signal);
  }
  await patiently(() => client.delete(VOLUME_GROUP_SNAPSHOTS, ref, { signal, uid }), signal);
}

/** A volume of a CSI driver whose snapshot a rule leaves to a VolumeSnapshotter. */
const isLeftToOthers = ({ way, pv }: PlannedSnapshot): boolean =>
  way === 'native' && pv.spec.csi !== undefined && pv.spec.csi !== null;

/** What the storage has of a group is kept or moved as a whole. Throws `GROUP_WAYS`. */
function assertSameWay(
  claim: PersistentVolumeClaim,
  group: string,
  own: PlannedBackup,
  first: PlannedBackup,
): void {
  if (own.spec.snapshotMoveData === first.spec.snapshotMoveData) return;
  const way = own.spec.snapshotMoveData === true ? 'moved' : 'kept';
  const text = `the snapshot of PVC ${placeOf(claim)} would be ${way} by its rule, and that of another PVC of volume group ${group} would not: let one rule be about all PVCs of the group, or take the group label off`;
  throw new CodedError('GROUP_WAYS', text);
}

/** Follows from backup, namespace and label, so that a second attempt finds the first one's. */
const groupName = ({ key, value }: VolumeGroup, { metadata }: Backup, namespace: string): string =>
  nameFor(
    `velero-${value.toLowerCase().replaceAll(/[^a-z0-9.-]/g, '-')}`,
    metadata.uid,
    namespace,
    `${key}=${value}`,
  );

const marksFor = (backup: Backup, group: string) => ({
  labels: {
    [BACKUP_NAME]: validLabel(backup.metadata.name),
    [BACKUP_UID]: backup.metadata.uid,
    [MOVED]: String(backup.spec.snapshotMoveData === true),
  },
  annotations: { [FOR_BACKUP]: placeOf(backup), [OF_GROUP]: group },
});

/** This backup's, as any other one. */
const isDetached = ({ metadata }: VolumeSnapshot): boolean =>
  metadata.annotations?.[OF_GROUP] !== undefined;
/** Goes with it. */
const isIn = ({ metadata, status }: VolumeSnapshot, group: VolumeGroupSnapshot): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === group.metadata.uid) === true ||
  status?.volumeGroupSnapshotName !== undefined;
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
