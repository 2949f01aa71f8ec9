import { isCode, messageOf } from '../../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  DATA_UPLOADS,
  isFailed,
  isGathering,
  isMovementOver,
  isOver,
  isUsable,
  type KubeObject,
  type Restore,
  RESTORES,
  VOLUME_GROUP_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeGroupSnapshotContent,
  type VolumeSnapshot,
} from '../../../kube/index.ts';
import { DELETED, phaseOf, purposeOf } from '../backup-phase.ts';
import { removeContent } from './group-handles.ts';
import { patiently, placeOf, type Setting } from '../settings.ts';
import { OF_GROUP, RESTORE_UID, STUB_FOR_RESTORE } from '../velero-names.ts';

/** Returns an empty list if the cluster lacks the CRD, as most clusters do. */
export async function listGroupContents(
  { client }: Setting,
  labelSelector: string,
  signal: AbortSignal,
): Promise<VolumeGroupSnapshotContent[]> {
  try {
    const list = () => client.list(VOLUME_GROUP_SNAPSHOT_CONTENTS, { labelSelector, signal });
    return await patiently(list, signal);
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return [];
    throw error;
  }
}

/** The content that a group of this backup left; undefined if deleted or never created. */
export async function contentOfGroup(
  setting: Setting,
  group: string,
  { metadata }: Backup,
  signal: AbortSignal,
): Promise<VolumeGroupSnapshotContent | undefined> {
  const found = await listGroupContents(setting, `${BACKUP_UID}=${metadata.uid}`, signal);
  return found.find(
    (each) =>
      each.metadata.annotations?.[OF_GROUP] === group &&
      each.metadata.deletionTimestamp === undefined &&
      each.spec.deletionPolicy === 'Retain',
  );
}

/**
 * Decides about the content of a group. `Delete`: all uploads have ended, or the backup failed
 * before it was stored. `Retain`: the stored backup keeps the snapshots. Undefined: the content is
 * still needed.
 */
async function fateOf(
  { uid, isMoved }: { readonly uid: string; readonly isMoved: boolean },
  phase: string | undefined,
  namespace: string,
  { client }: Setting,
  signal: AbortSignal,
): Promise<'Delete' | 'Retain' | undefined> {
  if (isGathering(phase)) return undefined;
  if (!isMoved) {
    if (isFailed(phase)) return 'Delete';
    // If its deletion has begun, the backup was stored.
    const isStored = isUsable(phase) || phase === 'Deleting' || phase === DELETED;
    return isStored ? 'Retain' : undefined;
  }
  const labelSelector = `${BACKUP_UID}=${uid}`;
  const uploads = await client.list(DATA_UPLOADS, { namespace, labelSelector, signal });
  return uploads.every(({ status }) => isMovementOver(status?.phase)) ? 'Delete' : undefined;
}

/** Removes a backup's groups of moved volumes after the last upload has ended. Never fails. */
export async function removeMovedGroups(
  setting: Setting,
  backup: Backup,
  signal: AbortSignal,
): Promise<void> {
  const { namespace = '', uid } = backup.metadata;
  try {
    const contents = await listGroupContents(setting, `${BACKUP_UID}=${uid}`, signal);
    await removeAsDecided(contents, setting, { namespace, signal });
  } catch (error) {
    const fields = { backup: placeOf(backup), reason: messageOf(error) };
    setting.logger.warn(
      fields,
      'snapshots of a volume group are left in the storage; a later backup tries again',
    );
  }
}

/** Removes contents that existed only for an ended restore. The storage keeps its snapshots. */
export async function removeStubs(
  setting: Setting,
  { namespace, signal }: { readonly namespace: string; readonly signal: AbortSignal },
): Promise<void> {
  const { client, logger } = setting;
  for (const stub of await listGroupContents(setting, `${STUB_FOR_RESTORE}=${namespace}`, signal)) {
    signal.throwIfAborted();
    const fields = { VolumeGroupSnapshotContent: stub.metadata.name };
    try {
      const { [RESTORE_UID]: uid } = stub.metadata.labels ?? {};
      const restores = await client.list(RESTORES, { namespace, signal });
      const restore = restores.find(({ metadata }) => metadata.uid === uid) as Restore | undefined;
      if (restore && !isOver(restore.status?.phase)) continue;
      await removeContent(setting, stub, 'Retain', signal);
      logger.debug(fields, 'the content of a volume group that was there for a restore is removed');
    } catch (error) {
      signal.throwIfAborted();
      logger.debug(
        { ...fields, reason: messageOf(error) },
        'a content of a restore could not be removed',
      );
    }
  }
}

/** Removes contents of killed processes. */
export async function removeLeftContents(
  setting: Setting,
  scope: { readonly namespace: string; readonly signal: AbortSignal },
): Promise<void> {
  const contents = await listGroupContents(setting, BACKUP_UID, scope.signal);
  await removeAsDecided(contents, setting, scope);
}

async function removeAsDecided(
  contents: readonly VolumeGroupSnapshotContent[],
  setting: Setting,
  { namespace, signal }: { readonly namespace: string; readonly signal: AbortSignal },
): Promise<void> {
  for (const content of contents) {
    signal.throwIfAborted();
    const purpose = purposeOf(content, namespace);
    if (!purpose || content.metadata.deletionTimestamp !== undefined) continue;
    const fields = { VolumeGroupSnapshotContent: content.metadata.name };
    try {
      const phase = await phaseOf(
        setting,
        { namespace, name: purpose.backup },
        purpose.uid,
        signal,
      );
      const fate = await fateOf(purpose, phase, namespace, setting, signal);
      if (fate === undefined) continue;
      await removeContent(setting, content, fate, signal);
      setting.logger.info(
        { ...fields, deletionPolicy: fate },
        'the content of a volume group is removed',
      );
    } catch (error) {
      signal.throwIfAborted();
      const reason = messageOf(error);
      setting.logger.warn(
        { ...fields, reason },
        'the content of a volume group could not be removed; a later backup tries again',
      );
    }
  }
}

/**
 * Called at the end of a backup that keeps its snapshots. With a group's last snapshot its content
 * is removed, and the storage keeps the snapshots.
 */
export async function releaseWithLast(
  setting: Setting,
  snapshot: VolumeSnapshot,
  backup: Backup,
  signal: AbortSignal,
): Promise<void> {
  const { namespace, uid, annotations } = snapshot.metadata;
  const group = annotations?.[OF_GROUP];
  if (group === undefined) return;
  const labelSelector = `${BACKUP_UID}=${backup.metadata.uid}`;
  const isOther = ({ metadata }: KubeObject): boolean =>
    metadata.uid !== uid &&
    metadata.deletionTimestamp === undefined &&
    metadata.annotations?.[OF_GROUP] === group;
  const list = () => setting.client.list(VOLUME_SNAPSHOTS, { namespace, labelSelector, signal });
  if ((await patiently(list, signal)).some(isOther)) return;
  const content = await contentOfGroup(setting, group, backup, signal);
  if (content) await removeContent(setting, content, 'Retain', signal);
}
