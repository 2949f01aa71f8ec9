import { BackupArchive, keyMissing } from '../../archive/index.ts';
import { CanceledError, CodedError, isCode, type Logger, messageOf } from '../../base/index.ts';
import type { OperationMap } from '../../item-operations/index.ts';
import {
  type Backup,
  Controller,
  type Discovery,
  hasHadRun,
  isOver,
  keyOf,
  type KubeClient,
  type Result,
} from '../../kube/index.ts';
import type { FileWriters } from '../runs/file-writers.ts';
import type { RunsView } from '../runs/runs-view.ts';
import { phaseOf, statusOf } from './backup-kind.ts';
import type { ActionSessions, Buckets, OpenBucket } from './contract.ts';
import {
  endLeftRun,
  isUnended,
  type LeftRun,
  ownerOf,
  readLeftRun,
  removeEndedJournal,
} from './run/left-run.ts';
import { cancelMovements } from '../operations/cancel.ts';
import { patiently } from '../runs/patience.ts';
import { patientClient } from '../runs/while-away.ts';
import { deleteStoredSnapshots, type StoredSnapshotsOptions } from './stored-snapshots.ts';
import type { NotedBackup, UnderWayNotes } from './under-way.ts';

export interface LostBackupsOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly backups: RunsView<Backup>;
  readonly notes: UnderWayNotes;
  /** Of its files after its run. */
  readonly writers: Pick<FileWriters, 'close'>;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  readonly operations: OperationMap;
  readonly discovery: () => Promise<Discovery>;
  readonly snapshotLocations: StoredSnapshotsOptions['snapshotLocations'];
  readonly removeSnapshots: RemoveSnapshots;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  /** A name is free again. */
  readonly onRemoved: () => void;
}

/**
 * Its run had a good end, and its phase alone says what came after: its files may not be published.
 */
const isGivenUp = (backup: Backup): boolean =>
  phaseOf(backup) === 'PartiallyFailed' && statusOf(backup).failureReason !== undefined;

/**
 * Removes the VolumeSnapshots of a Backup that was deleted before its end; those that were to be
 * kept only `withKept`. Throws where some of them stay.
 */
export type RemoveSnapshots = (
  backup: Backup,
  options: { readonly withKept: boolean; readonly signal: AbortSignal },
) => Promise<void>;

/** A Backup that was deleted before its end. What it was is in its note where nobody saw it go. */
interface Lost {
  readonly key: string;
  /** Whether somebody saw it go. */
  readonly isSeen: boolean;
  readonly sinceMs: number;
  /** `namespace/name` of pods whose post hooks have run since. */
  readonly thawed: Set<string>;
  /** Undefined until its note is read. */
  backup: Backup | undefined;
  isThawed: boolean;
}

const WORKERS = 16;
/** Of these for one location: one that hangs must not keep the others waiting. */
const AT_LOCATION = 12;
const BUSY_MS = 200;
/**
 * How long others leave its namespaces alone, should its pods still be frozen. Our choice: a bucket
 * that is gone for good must not end all backups.
 */
const FROZEN_MS = 10 * 60_000;
const OVER = 'over/';
/**
 * For one at a time: a bucket that hangs must not keep the others waiting for ever. It is tried
 * again. Our choice.
 */
const TRYING_MS = 30 * 60_000;
/** How long the API server may be away meanwhile. */
const PATIENCE_MS = 60_000;
/** Where it is not sure whether somebody has deleted a Backup. */
const UNSURE_MS = 5 * 60_000;
const NOTHING: LeftRun = { operations: [], snapshots: [], unknownSnapshots: [], frozen: [] };

/**
 * Backups that were deleted while they were made, or waited for their operations: what they have
 * begun is told to stop, and nothing of theirs stays with providers or in the bucket. Also those
 * whose deletion nobody saw, by their notes. Each is tried again until it is done.
 */
export class LostBackups {
  readonly #options: LostBackupsOptions;
  readonly #controller: Controller;
  readonly #lost = new Map<string, Lost>();
  /** How many have a name. */
  readonly #keys = new Map<string, number>();
  /** UIDs of those whose journal is no more. */
  readonly #forgotten = new Set<string>();
  readonly #over = new Map<string, Backup>();
  /** How many are worked on, by location. */
  readonly #busy = new Map<string, number>();

  constructor(options: LostBackupsOptions) {
    this.#options = options;
    this.#controller = new Controller({
      name: 'backup-lost',
      workers: WORKERS,
      logger: options.logger,
      reconcile: (key) =>
        key.startsWith(OVER) ? this.#tidy(key.slice(OVER.length)) : this.#removeLost(key),
    });
  }

  /**
   * Compares the notes with what is there: to be called before any backup begins. Waits for an API
   * server that is away.
   */
  async look(): Promise<void> {
    const { backups, namespace, logger, signal } = this.#options;
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
    const { notes, logger, signal } = this.#options;
    const about = { what: 'ask which backups are under way', logger, signal };
    return patiently(() => notes.list(signal), about);
  }

  async run(): Promise<void> {
    await this.#controller.run(this.#options.signal);
  }

  /**
   * Whether one of this name is still to be removed: what another one would write is in the same
   * folder of the bucket.
   */
  has(key: string): boolean {
    return this.#keys.has(key);
  }

  /** Those whose pods may still be frozen. One whose note was not read yet takes all namespaces. */
  frozen(): Backup[] {
    return [...this.#lost.values()]
      .filter(({ isThawed, sinceMs }) => !isThawed && performance.now() - sinceMs < FROZEN_MS)
      .map(({ backup }) => backup ?? ({ metadata: {}, spec: {} } as Backup));
  }

  /** Of one that was seen to go. */
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

  /** The journal of its run was removed. */
  forgotten({ metadata: { uid } }: Backup): void {
    if (this.#options.notes.has(uid)) this.#forgotten.add(uid);
  }

  /**
   * Nothing more becomes of it: its note goes, and before that whatever its run has left; `isLeft`:
   * also where it has no note.
   */
  over(backup: Backup, { isLeft = false } = {}): void {
    const { uid } = backup.metadata;
    if (!isLeft && !this.#options.notes.has(uid)) return;
    // The first one has more fields.
    if (!this.#over.has(uid)) this.#over.set(uid, backup);
    this.#controller.queue.add(`${OVER}${uid}`);
  }

  async #tidy(uid: string): Promise<Result | undefined> {
    const { notes, signal } = this.#options;
    const backup = this.#over.get(uid);
    if (!backup) return undefined;
    if (!this.#forgotten.has(uid) || isGivenUp(backup)) await this.#endLeft(backup);
    await notes.remove(uid, signal);
    this.#over.delete(uid);
    this.#forgotten.delete(uid);
    return undefined;
  }

  /**
   * Of one that is over, and whose journal nobody has removed: where it has failed, its journal may
   * say what goes on, and its files may not all be published.
   */
  async #endLeft(given: Backup): Promise<void> {
    const { uid, name } = given.metadata;
    await within(this.#options.signal, async (signal) => {
      const backup = (await this.#options.notes.load(uid, signal)) ?? given;
      await using opened = await this.#openedIfThere(given.spec.storageLocation ?? '', signal);
      if (!opened) return;
      const { bucket } = opened;
      if (['Failed', 'Deleting'].includes(phaseOf(given))) {
        const { client, logger, assertLeading } = this.#options;
        const left = await readLeftRun({ bucket, backup, logger, signal });
        if (isUnended(left)) await this.#end(backup, left, signal);
        await cancelMovements(client, ownerOf(backup), { logger, assertLeading, signal });
      }
      const { assertLeading, logger } = this.#options;
      // Whoever deletes it removes its files.
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
    const { backups, notes, logger } = this.#options;
    const lost = this.#lost.get(uid);
    if (!lost) return undefined;
    return within(this.#options.signal, async (signal) => {
      const backup = (lost.backup ??= await notes.load(uid, signal));
      if (backup) {
        const presence = await backups.presence(backup);
        // A watch that lists anew may have shown less than there is: whoever makes it goes on.
        if (presence === 'there') {
          this.#drop(uid);
          return undefined;
        }
        // Where nobody saw it go, its kind may be gone for a while, and what was read is all there
        // is to go by.
        if (presence === 'unknown' && !lost.isSeen) return { requeueAfterMs: UNSURE_MS };
        const location = backup.spec.storageLocation ?? '';
        const busy = this.#busy.get(location) ?? 0;
        if (busy >= AT_LOCATION) return { requeueAfterMs: BUSY_MS };
        this.#busy.set(location, busy + 1);
        try {
          const { name } = backup.metadata;
          logger.info({ backup: name, uid }, 'a backup was deleted before its end, and is removed');
          const filesGo = presence === 'deleted' && !(await backups.wentWithItsKind(backup));
          await this.#remove(backup, lost, filesGo, signal);
        } finally {
          const others = (this.#busy.get(location) ?? 1) - 1;
          if (others > 0) this.#busy.set(location, others);
          else this.#busy.delete(location);
        }
      }
      await notes.remove(uid, signal);
      this.#forgotten.delete(uid);
      this.#drop(uid);
      return undefined;
    });
  }

  async #remove(backup: Backup, lost: Lost, filesGo: boolean, signal: AbortSignal): Promise<void> {
    const { sessions, snapshotLocations, writers, logger, assertLeading } = this.#options;
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
      // Only its note was still there: whoever deletes a backup that is over removes its files, and
      // Backups are made again from them.
      assertLeading();
      await removeEndedJournal({ bucket: opened.bucket, backup, logger, signal });
      return;
    }
    const left = opened
      ? await readLeftRun({ bucket: opened.bucket, backup, logger, signal })
      : NOTHING;
    // Its movements belong to the Backup, and go with it.
    await this.#end(backup, left, signal, lost.thawed);
    lost.isThawed = true;
    this.#options.onRemoved();
    // Its files may be a whole backup. They are not deleted before somebody can tell.
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
    left: LeftRun,
    signal: AbortSignal,
    thawed?: Set<string>,
  ): Promise<void> {
    const { client, discovery, sessions, operations, logger, assertLeading } = this.#options;
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

  /** Undefined where the location was deleted as well: its files are nobody's of this cluster. */
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
 * Whether its files say that it is over: it was killed before its note went. `unknown`: they say
 * so, and the key that signed them is missing.
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
    // A writer to the bucket must not keep operations from ending.
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
