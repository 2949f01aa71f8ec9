import { messageOf, parseGoTime, quantityOf, rfc3339Seconds } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  type KubeObject,
  validLabel,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
} from '../../../kube/index.ts';
import type {
  BackupItemAction,
  BackupOutput,
  CallContext,
  OperationProgress,
  ResourceIdentifier,
} from '../../contract.ts';
import { invalidOperationId } from '../../operation-errors.ts';
import { changeContent, RETAINED } from './deletion-policy.ts';
import { contentOfGroup, releaseWithLast } from '../groups/group-contents.ts';
import { handlesOf } from '../groups/group-handles.ts';
import {
  deleteSecretOf,
  identifier,
  isAway,
  isStoredAgain,
  listSecretOf,
  patiently,
  placeOf,
  type Setting,
  SNAPSHOT_GROUP,
  withMarks,
} from '../settings.ts';
import { assertBound, isKeptBy } from './snapshots.ts';
import {
  DELETION_POLICY,
  FOR_BACKUP,
  GROUP_HANDLE,
  GROUP_MEMBERS,
  MUST_INCLUDE,
  OF_GROUP,
  SNAPSHOT_DRIVER,
  SNAPSHOT_HANDLE,
  SNAPSHOT_RESTORE_SIZE,
} from '../velero-names.ts';

/**
 * Handles a VolumeSnapshot that a backup keeps. Adds its content and class to the backup, and
 * annotates it with the values that a restore needs. The operation lasts until the snapshot is
 * ready in the storage. At finalization the objects are removed from the cluster, and the storage
 * keeps the snapshot.
 */
export class SnapshotBackup implements BackupItemAction {
  readonly #setting: Setting;

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async execute(item: KubeObject, backup: Backup, { signal }: CallContext): Promise<BackupOutput> {
    const snapshot = item as VolumeSnapshot;
    if (isStoredAgain(backup)) {
      await this.#release(snapshot, backup, signal);
      return {};
    }
    const { namespace, name } = snapshot.metadata;
    const className = snapshot.spec.volumeSnapshotClassName;
    const classes =
      className === undefined
        ? []
        : [identifier(SNAPSHOT_GROUP, 'volumesnapshotclasses', className)];
    const content = await this.#contentOf(snapshot, signal);
    // A user's snapshot that is not bound yet: it goes into the backup unchanged.
    if (!content) return { additionalItems: classes };
    const contents = identifier(SNAPSHOT_GROUP, 'volumesnapshotcontents', content.metadata.name);
    const additionalItems = [...classes, contents];
    // A user's snapshot, or a snapshot to be moved: the same items, but nothing is removed later.
    if (!isKeptBy(snapshot, backup)) return { additionalItems };
    const annotations = annotationsOf(content);
    await this.#mark(snapshot, content, annotations, backup, signal);
    const started = rfc3339Seconds(this.#setting.client.clock.nowNs());
    return {
      item: withMarks(snapshot, { annotations: { ...annotations, [MUST_INCLUDE]: 'true' } }),
      additionalItems,
      operationId: `${namespace ?? ''}/${name}/${started}`,
      postOperationItems: [
        identifier(SNAPSHOT_GROUP, 'volumesnapshots', name, namespace),
        contents,
      ],
    };
  }

  async #contentOf(
    snapshot: VolumeSnapshot,
    signal: AbortSignal,
  ): Promise<VolumeSnapshotContent | undefined> {
    const name = snapshot.status?.boundVolumeSnapshotContentName;
    if (name === undefined) return undefined;
    const { client } = this.#setting;
    const get = () => client.get(VOLUME_SNAPSHOT_CONTENTS, { name }, { signal });
    const content = await patiently(get, signal);
    assertBound(content, snapshot);
    return content;
  }

  /** Marks the cluster's object too, because the item is read again after the operation. */
  async #mark(
    snapshot: VolumeSnapshot,
    content: VolumeSnapshotContent,
    annotations: Readonly<Record<string, string>>,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, logger } = this.#setting;
    const { name: backupName, uid } = backup.metadata;
    const labels = { [BACKUP_NAME]: validLabel(backupName), [BACKUP_UID]: uid };
    const forBackup = { [FOR_BACKUP]: placeOf(backup) };
    const ref = { name: content.metadata.name };
    try {
      const members = await this.#membersOf(snapshot, backup, signal);
      const patch = { metadata: { labels, annotations: { ...forBackup, ...members } } };
      await patiently(() => client.patch(VOLUME_SNAPSHOT_CONTENTS, ref, patch, { signal }), signal);
    } catch (error) {
      const fields = { VolumeSnapshotContent: ref.name, reason: messageOf(error) };
      logger.warn(
        fields,
        'the content could not be labelled with its backup: the deletion of the backup will leave it',
      );
    }
    const { namespace, name } = snapshot.metadata;
    const patch = { metadata: { annotations } };
    const mark = () => client.patch(VOLUME_SNAPSHOTS, { namespace, name }, patch, { signal });
    await patiently(mark, signal);
  }

  /** Facts about a group that a restore and the deletion of the backup need. */
  async #membersOf(
    { metadata }: VolumeSnapshot,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<Record<string, string>> {
    const group = metadata.annotations?.[OF_GROUP];
    const content =
      group === undefined ? undefined : await contentOfGroup(this.#setting, group, backup, signal);
    return content ? { [GROUP_MEMBERS]: JSON.stringify(handlesOf(content)) } : {};
  }

  /** Removes the objects: they would end with their namespace. The storage's snapshot stays. */
  async #release(
    { metadata: { namespace, name, uid } }: VolumeSnapshot,
    backup: Backup,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, logger } = this.#setting;
    const ref = { namespace, name };
    const fields = { VolumeSnapshot: `${namespace ?? ''}/${name}` };
    try {
      const found = await patiently(() => client.find(VOLUME_SNAPSHOTS, ref, { signal }), signal);
      if (found?.metadata.uid !== uid || !isKeptBy(found, backup)) return;
      const content = await this.#retain(found, signal);
      if (content) {
        const { name: contentName, uid: contentUid } = content.metadata;
        const options = { signal, uid: contentUid };
        const remove = () =>
          client.delete(VOLUME_SNAPSHOT_CONTENTS, { name: contentName }, options);
        await patiently(remove, signal);
      } else if (found.status?.boundVolumeSnapshotContentName === undefined) {
        logger.error(fields, 'the VolumeSnapshot has no content at the end of its backup');
        return;
      } else logger.warn(fields, 'its content is gone, as it is after a server that was killed');
      await patiently(() => client.delete(VOLUME_SNAPSHOTS, ref, { signal, uid }), signal);
      await releaseWithLast(this.#setting, found, backup, signal);
    } catch (error) {
      logger.warn(
        { ...fields, reason: messageOf(error) },
        'the VolumeSnapshot could not be removed',
      );
    }
  }

  /** From here on, deleting the snapshot object keeps the storage's snapshot. */
  async #retain(
    snapshot: VolumeSnapshot,
    signal: AbortSignal,
  ): Promise<VolumeSnapshotContent | undefined> {
    const name = snapshot.status?.boundVolumeSnapshotContentName;
    if (name === undefined) return undefined;
    const retain = (content: VolumeSnapshotContent) => {
      assertBound(content, snapshot);
      return content.spec.deletionPolicy === 'Retain' ? undefined : RETAINED;
    };
    return changeContent(this.#setting.client, VOLUME_SNAPSHOT_CONTENTS, name, retain, signal);
  }

  async progress(
    operationId: string,
    _backup: Backup,
    { signal }: CallContext,
  ): Promise<OperationProgress> {
    const { client, logger } = this.#setting;
    const [namespace, name, started, ...more] = operationId.split('/');
    const isOurs = namespace && name && isTime(started ?? '') && more.length === 0;
    if (!isOurs) throw invalidOperationId(operationId);
    const pending = { ...PENDING, started };
    const updated = rfc3339Seconds(client.clock.nowNs());
    const failed = (err: string) => ({ ...pending, completed: true, err, updated });
    try {
      const snapshot = await client.find(VOLUME_SNAPSHOTS, { namespace, name }, { signal });
      if (!snapshot) return failed(`VolumeSnapshot ${namespace}/${name} was deleted`);
      const { status } = snapshot;
      const bound = status?.boundVolumeSnapshotContentName;
      // Snapshot errors are temporary: the controller retries.
      if (bound === undefined || status?.readyToUse !== true) {
        const told = status?.error?.message;
        if (told)
          logger.warn(
            { VolumeSnapshot: placeOf(snapshot), reason: told },
            'the snapshot is not ready',
          );
        if (bound === undefined || told) return pending;
      }
      const content = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name: bound }, { signal });
      if (!content) return failed(`VolumeSnapshotContent ${bound} was deleted`);
      const told = content.status?.error?.message;
      if (content.status?.readyToUse === true && status?.readyToUse === true) {
        return { ...pending, completed: true, nCompleted: 1, nTotal: 1, updated };
      }
      return told ? failed(told) : pending;
    } catch (error) {
      if (!isAway(error)) throw error;
      logger.info({ operationId, reason: messageOf(error) }, 'the progress is not known now');
      return pending;
    }
  }
}

function isTime(text: string): boolean {
  try {
    parseGoTime(text);
    return true;
  } catch {
    return false;
  }
}

const PENDING: OperationProgress = {
  completed: false,
  err: '',
  nCompleted: 0,
  nTotal: 1,
  operationUnits: 'Snapshots',
  description: '',
  started: undefined,
  updated: undefined,
};

function annotationsOf({ spec, status }: VolumeSnapshotContent): Record<string, string> {
  const { snapshotHandle, restoreSize, volumeGroupSnapshotHandle } = status ?? {};
  return {
    [DELETION_POLICY]: spec.deletionPolicy,
    ...(snapshotHandle !== undefined && {
      [SNAPSHOT_HANDLE]: snapshotHandle,
      [SNAPSHOT_DRIVER]: spec.driver,
    }),
    ...(restoreSize !== undefined && { [SNAPSHOT_RESTORE_SIZE]: quantityOf(restoreSize) }),
    ...(volumeGroupSnapshotHandle !== undefined && { [GROUP_HANDLE]: volumeGroupSnapshotHandle }),
  };
}

/** Adds the driver's Secret that the object names. */
const withSecret =
  (secrets: (item: KubeObject) => ResourceIdentifier[]) =>
  (item: KubeObject): Promise<BackupOutput> => {
    const additionalItems = secrets(item);
    if (additionalItems.length === 0) return Promise.resolve({});
    const marked = withMarks(item, { annotations: { [MUST_INCLUDE]: 'true' } });
    return Promise.resolve({ item: marked, additionalItems });
  };

const withDeleteSecret = withSecret(deleteSecretOf);
export const CONTENT_BACKUP: BackupItemAction = {
  // In these phases the item is stored again, as the operation left it.
  execute: (item, backup) => (isStoredAgain(backup) ? Promise.resolve({}) : withDeleteSecret(item)),
};
export const CLASS_BACKUP: BackupItemAction = { execute: withSecret(listSecretOf) };
