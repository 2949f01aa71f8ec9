import { messageOf, parseGoTime, quantityOf, rfc3339Seconds } from '../../base/index.ts';
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
} from '../../kube/index.ts';
import type {
  BackupItemAction,
  BackupOutput,
  CallContext,
  OperationProgress,
  ResourceIdentifier,
} from '../contract.ts';
import { invalidOperationId } from '../operation-errors.ts';
import { changeContent, RETAINED } from './deletion-policy.ts';
import { contentOfGroup, releaseWithLast } from './group-contents.ts';
import { handlesOf } from './group-handles.ts';
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
} from './setting.ts';
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
} from './velero-names.ts';

/**
 * A VolumeSnapshot that a backup keeps: its content and class go into the backup, and what a
 * restore needs of both is written on it. The operation lasts until the storage has finished the
 * snapshot. When the backup is finalized, the objects are removed from the cluster and the
 * storage's snapshot stays.
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
    // One that somebody else took just now: it goes into the backup as it is.
    if (!content) return { additionalItems: classes };
    const contents = identifier(SNAPSHOT_GROUP, 'volumesnapshotcontents', content.metadata.name);
    const additionalItems = [...classes, contents];
    // One of a user, or that is being moved: the same, and nothing of it is removed at the end.
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

  /** In the cluster too: what is stored when the operation is over is read from there. */
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

  /** What a restore and the deletion of the backup need to know of a group. */
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

  /** The storage's snapshot is kept; the objects would end with their namespace. */
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

  /** From here on the snapshot's deletion leaves what the storage has alone. */
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
      // Errors of a snapshot pass: the controller tries again.
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

/** What is needed with an object: the driver's secret that it names. */
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
  // It is stored once more then, as the operation has left it.
  execute: (item, backup) => (isStoredAgain(backup) ? Promise.resolve({}) : withDeleteSecret(item)),
};
export const CLASS_BACKUP: BackupItemAction = { execute: withSecret(listSecretOf) };
