import { isCode, messageOf } from '../../base/index.ts';
import { BACKUPS, DATA_UPLOADS, VOLUME_SNAPSHOTS, type VolumeSnapshot } from '../../kube/index.ts';
import type { Backup } from '../contract.ts';
import type { Setting } from './setting.ts';
import type { Snapshots } from './snapshots.ts';
import { BACKUP_UID, FOR_BACKUP, MOVED } from './velero-names.ts';

/** Phases in which a backup may still be taking snapshots; ours, of whatever process. */
const TAKING = [undefined, '', 'New', 'Queued', 'ReadyToStart', 'InProgress'];

/**
 * Removes snapshots that were taken to be moved by a process that was killed before it had made their upload: nobody would ever look at
 * them again. A snapshot with an upload is its upload's, whatever becomes of it. `current` is the backup that this process takes snapshots
 * for: what it does not hold is of a process before it, since Velero has one for each backup.
 */
export async function removeOrphans(
  setting: Setting,
  snapshots: Snapshots,
  current: Backup | undefined,
  signal: AbortSignal,
): Promise<void> {
  const { client, logger } = setting;
  try {
    const labelSelector = `${MOVED}=true`;
    const found = await client.list(VOLUME_SNAPSHOTS, { labelSelector, signal });
    const byBackup = Map.groupBy(found, ({ metadata }) => metadata.labels?.[BACKUP_UID] ?? '');
    for (const [uid, ofBackup] of byBackup) {
      const [first] = ofBackup;
      const place = first?.metadata.annotations?.[FOR_BACKUP]?.split('/') ?? [];
      const [namespace, name] = place;
      if (uid === '' || namespace === undefined || name === undefined) continue;
      if (uid !== current?.metadata.uid && (await isTaking(setting, { namespace, name }, uid)))
        continue;
      const uploads = await client.list(DATA_UPLOADS, {
        namespace,
        labelSelector: `${BACKUP_UID}=${uid}`,
        signal,
      });
      const moved = new Set(uploads.map(({ spec }) => placeIn(spec)));
      for (const snapshot of ofBackup) await removeIfOrphan(snapshot, moved, snapshots);
    }
  } catch (error) {
    // The next process tries again; the backup itself goes on.
    logger.debug({ reason: messageOf(error) }, 'left-over VolumeSnapshots could not be looked for');
  }
}

const placeIn = (spec: {
  sourceNamespace: string;
  csiSnapshot?: { volumeSnapshot: string } | null | undefined;
}): string => `${spec.sourceNamespace}/${spec.csiSnapshot?.volumeSnapshot ?? ''}`;

async function removeIfOrphan(
  snapshot: VolumeSnapshot,
  moved: ReadonlySet<string>,
  snapshots: Snapshots,
): Promise<void> {
  const { namespace = '', name, deletionTimestamp } = snapshot.metadata;
  if (moved.has(`${namespace}/${name}`)) return;
  if (snapshots.isHeld(snapshot) || deletionTimestamp !== undefined) return;
  await snapshots.remove(snapshot);
}

async function isTaking(
  { client }: Setting,
  ref: { readonly namespace: string; readonly name: string },
  uid: string,
): Promise<boolean> {
  try {
    const backup: Backup = (await client.get(BACKUPS, ref)) as Backup;
    return backup.metadata.uid === uid && TAKING.includes(backup.status?.phase);
  } catch (error) {
    if (isCode(error, 'KUBE_NOT_FOUND')) return false;
    throw error;
  }
}
