import { CodedError, lookup, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  type PersistentVolumeClaim,
  PVCS,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshot,
  type VolumeSnapshot,
} from '../../../kube/index.ts';
import { contentOfGroup } from './group-contents.ts';
import { assertSameWay, driverOf, type GroupMember, groupClassFor } from './group-class.ts';
import { detachAll, membersOf } from './group-members.ts';
import {
  deleteGroupWithContent,
  dissolve,
  findGroup,
  makeGroup,
  untilThere,
  type VolumeGroup,
} from './volume-group.ts';
import { nameFor, patiently, placeOf, type Setting } from '../settings.ts';
import { snapshotClassFor } from '../snapshots/snapshot-class.ts';
import type { Snapshots } from '../snapshots/snapshots.ts';
import { OF_GROUP } from '../velero-names.ts';
import type { PlannedBackup, PlannedSnapshot, VolumeChoice } from '../volume-choice.ts';

const CLEAN_UP_MS = 30_000;
/** Undefined for a PVC outside any group. */
export function groupOf(pvc: PersistentVolumeClaim, { spec }: Backup): VolumeGroup | undefined {
  const key = spec.volumeGroupSnapshotLabelKey ?? '';
  const value = lookup(pvc.metadata.labels, key) ?? '';
  return key === '' || value === '' ? undefined : { key, value };
}

/**
 * Takes snapshots of all volumes of a group at one moment, once per group and backup (Velero
 * v1.18.3: pkg/backup/actions/csi/pvc_action.go, getVolumeSnapshotReference). Then removes the
 * group; its snapshots stay as if each had been taken alone.
 *
 * The group's data in the storage are deleted after the last upload, or with the backup. A failure
 * removes everything, and the other members fail at once with the same error.
 */
export class GroupSnapshots {
  readonly #setting: Setting;
  readonly #choice: VolumeChoice;
  readonly #snapshots: Snapshots;
  /** Snapshots by namespace and name of the VolumeGroupSnapshot, then by name of the PVC. */
  readonly #cuts = new Map<string, Promise<ReadonlyMap<string, VolumeSnapshot>>>();

  constructor(setting: Setting, choice: VolumeChoice, snapshots: Snapshots) {
    this.#setting = setting;
    this.#choice = choice;
    this.#snapshots = snapshots;
  }

  /** Returns the snapshot of one member. The first call cuts the snapshots of all members. */
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
      // A canceled attempt says nothing about the group.
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
    const begun = await findGroup(this.#setting, namespace, name, signal);
    const isOver = !begun || begun.metadata.deletionTimestamp !== undefined;
    if (earlier.size > 0 && isOver) {
      // An ended process has cut all of them. A PVC outside that cut gets no snapshot: a second
      // group would be of another moment, and its failure would remove the first group's snapshots.
      if (await contentOfGroup(this.#setting, name, backup, signal)) return earlier;
      // That process failed, and was killed while it removed them.
      for (const each of earlier.values()) await this.#snapshots.remove(each);
    }
    const members = await this.#members(namespace, group, backup, signal);
    const driver = driverOf(members);
    const className = await groupClassFor(driver, pvc, backup, this.#setting, signal);
    const { metadata } = await snapshotClassFor(driver, pvc, backup, this.#setting, signal);
    let made: VolumeGroupSnapshot | undefined;
    try {
      made = await makeGroup(this.#setting, { namespace, name, className }, group, backup, signal);
      const wanted = members.map(({ claim }) => claim.name);
      const { own, others } = await untilThere(this.#setting, made, wanted, backup, signal);
      const all = await detachAll(this.#setting, [...own.values(), ...others], made, {
        backup,
        snapshotClass: metadata.name,
        signal,
      });
      await dissolve(this.#setting, made, backup, signal);
      // Remove snapshots of PVCs that a policy excludes: the group's selector cannot exclude them.
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

  /** Snapshots that an earlier process of this backup took over. */
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
    const { client } = this.#setting;
    const labelSelector = `${key}=${value}`;
    const list = () => client.list(PVCS, { namespace, labelSelector, signal });
    const members: GroupMember[] = [];
    for (const claim of await patiently(list, signal)) {
      const planned = await this.#choice.snapshotOf(claim, backup.original ?? backup, signal);
      if (planned.way === undefined || isLeftToOthers(planned)) continue;
      const { metadata, spec } = planned.pv;
      const isMoved = planned.backup.spec.snapshotMoveData === true;
      const member = {
        claim: claim.metadata,
        volume: metadata.name,
        driver: spec.csi?.driver,
        isMoved,
      };
      assertSameWay(member, value, backup.spec.snapshotMoveData === true);
      members.push(member);
    }
    return members;
  }

  /** Removes the objects and storage snapshots of a failed attempt. Logs failures, never throws. */
  async #removeAll(made: VolumeGroupSnapshot, backup: Backup): Promise<void> {
    const { logger } = this.#setting;
    const signal = AbortSignal.timeout(CLEAN_UP_MS);
    try {
      const members = await membersOf(this.#setting, made, backup, signal);
      await deleteGroupWithContent(this.#setting, made, signal);
      for (const each of members) await this.#snapshots.remove(each);
    } catch (error) {
      const fields = { VolumeGroupSnapshot: placeOf(made), reason: messageOf(error) };
      logger.warn(fields, 'the VolumeGroupSnapshot could not be deleted: remove it by hand');
    }
  }
}

/** A CSI volume whose snapshot a rule leaves to a VolumeSnapshotter. */
const isLeftToOthers = ({ way, pv }: PlannedSnapshot): boolean =>
  way === 'native' && pv.spec.csi !== undefined && pv.spec.csi !== null;

/** Derived from backup, namespace and label, so that a second attempt finds the same group. */
const groupName = ({ key, value }: VolumeGroup, { metadata }: Backup, namespace: string): string =>
  nameFor(
    `velero-${value.toLowerCase().replaceAll(/[^a-z0-9.-]/g, '-')}`,
    metadata.uid,
    namespace,
    `${key}=${value}`,
  );
