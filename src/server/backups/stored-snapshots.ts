import type { BackupArchive, NativeSnapshot } from '../../archive/index.ts';
import { CanceledError, CodedError, isCode, type Logger, messageOf } from '../../base/index.ts';
import type { SnapshotLocation } from '../../backup-volumes/index.ts';
import type { Backup } from '../../kube/index.ts';
import type { ActionSession, ActionSessions } from './contract.ts';

export interface StoredSnapshotsOptions {
  readonly archive: BackupArchive;
  readonly sessions: ActionSessions;
  readonly snapshotLocations: (
    names: readonly string[],
    signal: AbortSignal,
  ) => Promise<readonly SnapshotLocation[]>;
  /** From the journal: an unfinished run has stored no list. */
  readonly also?: readonly NativeSnapshot[];
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

/** Time limit for all snapshots of a backup, because its files wait. Our choice. */
const DELETING_MS_MAX = 10 * 60_000;

/**
 * Deletes the provider's snapshots of a backup that is being removed. Only the log names the
 * snapshots that could not be deleted.
 */
export async function deleteStoredSnapshots(
  backup: Backup,
  { archive, sessions, snapshotLocations, also = [], logger, signal }: StoredSnapshotsOptions,
): Promise<void> {
  const { name, uid } = backup.metadata;
  const stays = (snapshot: object, error: unknown): void => {
    signal.throwIfAborted();
    const fields = { backup: name, uid, ...snapshot, error: messageOf(error) };
    const text = 'a snapshot of a backup that was deleted stays with its provider: delete it there';
    logger.error(fields, text);
  };
  const stored = await nativeSnapshotsOf(backup, archive, also, signal).catch((error: unknown) => {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
    stays({ snapshot: 'with the tag velero.io/backup' }, error);
    return storedSnapshotsIn(also);
  });
  if (stored.length === 0) return;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new CanceledError('timeout')), DELETING_MS_MAX);
  const both = AbortSignal.any([signal, late.signal]);
  let session: ActionSession | undefined;
  try {
    for (const snapshot of stored) {
      try {
        both.throwIfAborted();
        session ??= await sessions.open(backup, logger);
        await deleteNativeSnapshot(snapshot, session, snapshotLocations, both);
        logger.info({ backup: name, ...snapshot }, 'a snapshot was deleted');
      } catch (error) {
        stays(snapshot, error);
      }
    }
  } finally {
    clearTimeout(timer);
    await session?.[Symbol.asyncDispose]();
  }
}

/**
 * Calls the plugin of its location. Throws `NO_LOCATION`, `NO_SUCH_PLUGIN`, and the plugin's error.
 */
export async function deleteNativeSnapshot(
  snapshot: StoredSnapshot,
  session: Pick<ActionSession, 'snapshotter'>,
  snapshotLocations: StoredSnapshotsOptions['snapshotLocations'],
  signal: AbortSignal,
): Promise<void> {
  const [location] = await snapshotLocations([snapshot.location], signal);
  if (!location) throw noLocation(snapshot.location);
  const snapshotter = session.snapshotter(location.spec?.provider ?? '', {
    ...location.spec?.config,
  });
  await snapshotter.deleteSnapshot(snapshot.snapshot, { signal });
}

/**
 * All snapshots of a backup according to its files and journal. Throws `DAMAGED_ARCHIVE` and errors
 * of the bucket.
 */
export async function nativeSnapshotsOf(
  backup: Backup,
  archive: BackupArchive,
  also: readonly NativeSnapshot[],
  signal: AbortSignal,
): Promise<StoredSnapshot[]> {
  const listed = await snapshotsOf(archive, backup, signal);
  return eachOnce([...listed, ...also.flatMap(snapshotIn)]);
}

/** Snapshots with an id, each once. */
export const storedSnapshotsIn = (noted: readonly NativeSnapshot[]): StoredSnapshot[] =>
  eachOnce(noted.flatMap(snapshotIn));

const eachOnce = (all: readonly StoredSnapshot[]): StoredSnapshot[] => [
  ...new Map(all.map((each) => [`${each.location}/${each.snapshot}`, each])).values(),
];

const noLocation = (name: string): CodedError =>
  new CodedError('NO_LOCATION', `VolumeSnapshotLocation.velero.io "${name}" not found`);

/** A snapshot made through a provider's own API. */
export interface StoredSnapshot {
  readonly location: string;
  readonly volume: string;
  readonly snapshot: string;
}

function snapshotIn({ spec, status }: NativeSnapshot): StoredSnapshot[] {
  const { location = '', persistentVolumeName: volume = '' } = spec;
  const { providerSnapshotID: snapshot = '' } = status ?? {};
  return snapshot === '' ? [] : [{ location, volume, snapshot }];
}

async function snapshotsOf(
  archive: BackupArchive,
  { metadata: { name, uid } }: Backup,
  signal: AbortSignal,
): Promise<StoredSnapshot[]> {
  try {
    const stored = await archive.open(name, { signal });
    if (stored.metadata.metadata.uid !== uid) return [];
    const snapshots = await stored.volumeSnapshots({ signal });
    return snapshots.flatMap(snapshotIn);
  } catch (error) {
    // The backup was deleted before it had any files.
    if (isCode(error, 'BLOB_NOT_FOUND')) return [];
    throw error;
  }
}
