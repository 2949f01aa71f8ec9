import { BackupArchive, keyMissing } from '../../archive/index.ts';
import { CanceledError, CodedError, isCode, messageOf } from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  type Backup,
  Controller,
  type Discovery,
  hasHadRun,
  isOver,
  keyOf,
  type Result,
} from '../../kube/index.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';
import { phaseOf, statusOf } from './backup-kind.ts';
import type { ActionSessions, Buckets, OpenBucket } from './contract.ts';
import {
  endLeftRun,
  isUnended,
  type UnfinishedRun,
  readUnfinishedRun,
  removeEndedJournal,
} from './run/unfinished-run.ts';
import { cancelMovements } from '../operations/cancel-operations.ts';
import { patiently } from '../runs/bucket-retries.ts';
import { PlaceTurns } from '../place-turns.ts';
import { patientClient } from '../runs/api-outage.ts';
import { deleteStoredSnapshots, type StoredSnapshotsOptions } from './stored-snapshots.ts';
import type { NotedBackup, UnderWayNotes } from './running-backups.ts';

export interface LostBackupsOptions {
  readonly lead: Lead;
  readonly backups: RunsView<Backup>;
  readonly notes: UnderWayNotes;
  /** The tasks that write its files after its run. */
  readonly writers: Pick<FileWriters, 'close'>;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly discovery: () => Promise<Discovery>;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly removeSnapshots: RemoveSnapshots;
  /** Called when a name is free again. */
  readonly onRemoved: () => void;
}

/** The run ended well, but only the phase tells the rest: files may be unpublished. */
const isGivenUp = (backup: Backup): boolean =>
  phaseOf(backup) === 'PartiallyFailed' && statusOf(backup).failureReason !== undefined;

/**
 * Removes VolumeSnapshots of a Backup that was deleted before its end. Snapshots that were to be
 * kept are removed only `withKept`. Throws if some remain.
 */
export type RemoveSnapshots = (
  backup: Backup,
  options: { readonly withKept: boolean; readonly signal: AbortSignal },
) => Promise<void>;

/**
 * A Backup that was deleted before its end. If nobody saw the deletion, its note has the fields.
 */
interface Lost {
  readonly key: string;
  /** Whether the watch saw the deletion. */
  readonly isSeen: boolean;
  readonly sinceMs: number;
  /** `namespace/name` of pods whose post hooks have run since the deletion. */
  readonly thawed: Set<string>;
  /** Undefined until the note is read. */
  backup: Backup | undefined;
  isThawed: boolean;
}

const WORKERS = 16;
const AT_LOCATION = 12;
const BUSY_MS = 200;
/**
 * How long the namespaces of its frozen pods stay blocked for other backups. Our choice: a bucket
 * that is gone for good must not stop all backups.
 */
const FROZEN_MS = 10 * 60_000;
const OVER = 'over/';
/** Time limit of one try, in case a bucket hangs. Our choice. */
const TRYING_MS = 30 * 60_000;
/** How long a try waits for the API server. */
const PATIENCE_MS = 60_000;
/** Delay while it is unclear whether a user has deleted the Backup. */
const UNSURE_MS = 5 * 60_000;
const NOTHING: UnfinishedRun = { operations: [], snapshots: [], unknownSnapshots: [], frozen: [] };

/**
 * Ends backups that were deleted before their end. Cancels their operations, and removes their
 * snapshots and files. Notes reveal deletions that no server saw. Retries until done.
 */
export class LostBackups {
  readonly #options: LostBackupsOptions;
  readonly #controller: Controller;
  readonly #lost = new Map<string, Lost>();
  /** Number of lost backups per `namespace/name`. */
  readonly #keys = new Map<string, number>();
  /** UIDs of backups whose journal is removed. */
  readonly #forgotten = new Set<string>();
  readonly #over = new Map<string, Backup>();
  readonly #turns = new PlaceTurns(AT_LOCATION, BUSY_MS);

  constructor(options: LostBackupsOptions) {
    this.#options = options;
    this.#controller = new Controller({
      name: 'backup-lost',
      workers: WORKERS,
      logger: options.lead.logger,
      reconcile: (key) =>
        key.startsWith(OVER) ? this.#tidy(key.slice(OVER.length)) : this.#removeLost(key),
    });
  }

  /**
   * Finds lost backups by their notes. Call it before any backup begins. Waits for the API server.
   */
  async look(): Promise<void> {
    const { backups } = this.#options;
    const { namespace, logger, signal } = this.#options.lead;
    try {
      for (const { name, uid } of await this.#noted()) {
        const backup = backups.get({ namespace, name });
        if (backup?.metadata.uid !== uid) this.#add(uid, keyOf({ namespace, name }), undefined);
        else if (hasHadRun(phaseOf(backup))) this.over(backup);
      }
    } catch (error) {
      if (signal.aborted) return;
      const text = 'nobody can say at present which backups were deleted while no server led';
      logger.error({ error: messageOf(error) }, text);
    }
  }

  #noted(): Promise<readonly NotedBackup[]> {
    const { notes } = this.#options;
    const { logger, signal } = this.#options.lead;
    const about = { what: 'ask which backups are under way', logger, signal };
    return patiently(() => notes.list(signal), about);
  }

  async run(): Promise<void> {
    await this.#controller.run(this.#options.lead.signal);
  }

  /** Whether a backup of this name is still being removed. A new one would share its folder. */
  has(key: string): boolean {
    return this.#keys.has(key);
  }

  /** Backups whose pods may still be frozen. Without its note, a backup blocks all namespaces. */
  frozen(): Backup[] {
    return [...this.#lost.values()]
      .filter(({ isThawed, sinceMs }) => !isThawed && performance.now() - sinceMs < FROZEN_MS)
      .map(({ backup }) => backup ?? ({ metadata: {}, spec: {} } as Backup));
  }

  /** Adds a backup whose deletion the watch saw. */
  add(backup: Backup): void {
    this.#add(backup.metadata.uid, keyOf(backup.metadata), backup);
  }

  #add(uid: string, key: string, backup: Backup | undefined): void {
    if (!this.#lost.has(uid)) {
      const sinceMs = performance.now();
      const isSeen = backup !== undefined;
      this.#lost.set(uid, { key, backup, isSeen, sinceMs, thawed: new Set(), isThawed: false });
      this.#keys.set(key, (this.#keys.get(key) ?? 0) + 1);
    }
    this.#controller.queue.add(uid);
  }

  #drop(uid: string): void {
    const lost = this.#lost.get(uid);
    if (!lost) return;
    this.#lost.delete(uid);
    const count = (this.#keys.get(lost.key) ?? 1) - 1;
    if (count > 0) this.#keys.set(lost.key, count);
    else this.#keys.delete(lost.key);
    this.#options.onRemoved();
  }

  /** Called when the journal of a run is removed. */
  forgotten({ metadata: { uid } }: Backup): void {
    if (this.#options.notes.has(uid)) this.#forgotten.add(uid);
  }

  /**
   * Removes the leftovers of a finished backup, and then its note. `isLeft`: even without a note.
   */
  over(backup: Backup, { isLeft = false } = {}): void {
    const { uid } = backup.metadata;
    if (!isLeft && !this.#options.notes.has(uid)) return;
    // The first version has more fields.
    if (!this.#over.has(uid)) this.#over.set(uid, backup);
    this.#controller.queue.add(`${OVER}${uid}`);
  }

  async #tidy(uid: string): Promise<Result | undefined> {
    const { notes } = this.#options;
    const { signal } = this.#options.lead;
    const backup = this.#over.get(uid);
    if (!backup) return undefined;
    return this.#turns.run(backup.spec.storageLocation ?? '', async () => {
      if (!this.#forgotten.has(uid) || isGivenUp(backup)) await this.#endLeft(backup);
      await notes.remove(uid, signal);
      this.#over.delete(uid);
      this.#forgotten.delete(uid);
      return undefined;
    });
  }

  /**
   * Cleans up after a finished backup that still has a journal. The journal of a failed backup may
   * have running operations. Files may be unpublished.
   */
  async #endLeft(given: Backup): Promise<void> {
    const { uid, name } = given.metadata;
    await within(this.#options.lead.signal, async (signal) => {
      const backup = (await this.#options.notes.load(uid, signal)) ?? given;
      await using opened = await this.#openedIfThere(given.spec.storageLocation ?? '', signal);
      if (!opened) return;
      const { bucket } = opened;
      if (['Failed', 'Deleting'].includes(phaseOf(given))) {
        const { client, logger, assertLeading } = this.#options.lead;
        const left = await readUnfinishedRun({ bucket, backup, logger, signal });
        if (isUnended(left)) await this.#end(backup, left, signal);
        await cancelMovements(client, 'Backup', backup.metadata, { logger, assertLeading, signal });
      }
      const { assertLeading, logger } = this.#options.lead;
      // The deletion removes the files.
      if (phaseOf(given) !== 'Deleting') {
        await new BackupArchive(bucket).sealEnded(name, uid, {
          signal,
          assertAllowed: assertLeading,
        });
      }
      assertLeading();
      await removeEndedJournal({ bucket, backup, logger, signal });
    });
  }

  async #removeLost(uid: string): Promise<Result | undefined> {
    const lost = this.#lost.get(uid);
    if (!lost) return undefined;
    const { backups, notes } = this.#options;
    const { logger } = this.#options.lead;
    return within(this.#options.lead.signal, async (signal) => {
      const backup = (lost.backup ??= await notes.load(uid, signal));
      if (backup) {
        const presence = await backups.presence(backup);
        // A new list of the watch was incomplete. Its controller continues the backup.
        if (presence === 'there') {
          this.#drop(uid);
          return undefined;
        }
        // Its kind may be gone for a while, so wait for a definite answer.
        if (presence === 'unknown' && !lost.isSeen) return { requeueAfterMs: UNSURE_MS };
        const busy = await this.#turns.run(backup.spec.storageLocation ?? '', async () => {
          const { name } = backup.metadata;
          logger.info({ backup: name, uid }, 'a backup was deleted before its end, and is removed');
          const filesGo = presence === 'deleted' && !(await backups.wentWithItsKind(backup));
          await this.#remove(backup, lost, filesGo, signal);
          return undefined;
        });
        if (busy) return busy;
      }
      await notes.remove(uid, signal);
      this.#forgotten.delete(uid);
      this.#drop(uid);
      return undefined;
    });
  }

  async #remove(backup: Backup, lost: Lost, filesGo: boolean, signal: AbortSignal): Promise<void> {
    const { sessions, snapshotLocations, writers } = this.#options;
    const { logger, assertLeading } = this.#options.lead;
    const { name, uid } = backup.metadata;
    if (filesGo && !(await writers.close(uid))) {
      const text = `files of backup ${name} are still being written: they are removed when that has ended`;
      throw new CodedError('STILL_WRITTEN', text, { retry: 'backoff' });
    }
    await using opened = await this.#openedIfThere(backup.spec.storageLocation ?? '', signal);
    const archive = opened && new BackupArchive(opened.bucket);
    const end = archive ? await storedEnd(archive, backup, signal) : 'none';
    if (opened && archive && end === 'stored') {
      await archive.seal(name, uid, { signal, assertAllowed: assertLeading });
      // The backup had ended. A deletion removes its files; until then Backups are synced from
      // them.
      assertLeading();
      await removeEndedJournal({ bucket: opened.bucket, backup, logger, signal });
      return;
    }
    const left = opened
      ? await readUnfinishedRun({ bucket: opened.bucket, backup, logger, signal })
      : NOTHING;
    // Its data movements are owned by the Backup and are deleted with it.
    await this.#end(backup, left, signal, lost.thawed);
    lost.isThawed = true;
    this.#options.onRemoved();
    // The files may be a complete backup, so keep them until their key is there.
    if (end === 'unknown') throw keyMissing(name);
    assertLeading();
    await this.#options.removeSnapshots(backup, { withKept: filesGo, signal });
    if (!archive || !filesGo) return;
    await deleteStoredSnapshots(backup, {
      archive,
      sessions,
      snapshotLocations,
      logger,
      signal,
      also: left.snapshots,
    });
    assertLeading();
    if (await archive.deleteOf(name, uid, { signal, assertAllowed: assertLeading })) {
      const text = 'files of another backup of its name stay in the bucket';
      logger.info({ backup: name, uid }, text);
    }
  }

  async #end(
    backup: Backup,
    left: UnfinishedRun,
    signal: AbortSignal,
    thawed?: Set<string>,
  ): Promise<void> {
    const { discovery, sessions, operations } = this.#options;
    const { client, logger, assertLeading } = this.#options.lead;
    try {
      await endLeftRun(backup, left, {
        client: patientClient(client, {
          logger,
          signal,
          patienceMs: PATIENCE_MS,
          assertLeading,
        }),
        discovery,
        sessions,
        operations,
        logger,
        assertLeading,
        signal,
        location: backup.spec.storageLocation ?? '',
        ...(thawed && { thawed }),
      });
    } finally {
      operations.forget(backup.metadata.uid);
    }
  }

  /** Undefined if the location is deleted: its files no longer belong to this cluster. */
  async #openedIfThere(location: string, signal: AbortSignal): Promise<OpenBucket | undefined> {
    try {
      return location === '' ? undefined : await this.#options.buckets.open(location, signal);
    } catch (error) {
      if (isCode(error, 'NO_LOCATION')) return undefined;
      throw error;
    }
  }
}

/**
 * Whether its files say that the backup has ended. `unknown`: the files say so, but the key of
 * their signature is missing.
 */
async function storedEnd(
  archive: BackupArchive,
  { metadata: { name, uid } }: Backup,
  signal: AbortSignal,
): Promise<'stored' | 'none' | 'unknown'> {
  try {
    const stored = await archive.open(name, { signal });
    const { metadata, status } = stored.metadata;
    if (metadata.uid !== uid || !isOver(status?.phase ?? '')) return 'none';
    if (stored.signature === 'unknown') return 'unknown';
    // A writer to the bucket must not prevent the cancel of operations.
    return stored.mayBeForged ? 'none' : 'stored';
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return 'none';
    throw error;
  }
}

async function within<T>(
  signal: AbortSignal,
  task: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = new AbortController();
  const timer = setTimeout(() => {
    late.abort(new CanceledError('timeout'));
  }, TRYING_MS);
  try {
    return await task(AbortSignal.any([signal, late.signal]));
  } finally {
    clearTimeout(timer);
  }
}
