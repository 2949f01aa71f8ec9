import {
  CodedError,
  HOUR_NS,
  type Logger,
  messageOf,
  MINUTE_NS,
  Stopwatch,
} from '../base/index.ts';
import type { Compressor } from '../codec/index.ts';
import type { ManifestId, ObjectId, Repository } from '../repository/index.ts';
import {
  type DirectoryEntry,
  expiredSnapshots,
  listReadableSnapshots,
  type NewSnapshot,
  type Policy,
  saveSnapshot,
} from '../snapshot/index.ts';
import { isClockRight, isListComplete } from './apply-retention.ts';
import type { OpenTree } from './open-tree.ts';
import { CHECKPOINT_REASON, storeOpenTree } from './open-tree-store.ts';
import { findLostObjects } from './tree-check.ts';

/** Kopia's interval (snapshot/upload/upload.go, DefaultCheckpointInterval). */
const CHECKPOINT_EVERY_NS = 45n * MINUTE_NS;
/** How soon one that failed is tried again. Our choice. */
const RETRY_AFTER_NS = 5n * MINUTE_NS;
/**
 * What took longer is looked over before it counts: garbage collections that are more than four
 * hours apart free what neither of them could reach (Kopia: maintenance_safety.go,
 * MarginBetweenSnapshotGC).
 */
const CHECK_AFTER_NS = 4n * HOUR_NS;
const REPAIRS_MAX = 2;
/** How often the time is checked. */
const LOOK_EVERY_MS = 250;

export interface LongUploadOptions {
  /** Runs since before the index was read for this upload. */
  readonly sinceStart: Stopwatch;
  readonly repository: Repository;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** What is stored so far. */
  readonly open: OpenTree;
  readonly compressor: Compressor | undefined;
  readonly retention: Policy['retention'];
  /** The snapshot as it would be saved with this root. */
  readonly snapshotOf: (root: DirectoryEntry) => NewSnapshot;
  readonly onChecked: () => void;
}

/** Stores a tree once more, reading those files again whose objects are lost. */
export type UploadAgain = (
  root: DirectoryEntry,
  isLost: (id: ObjectId) => boolean,
) => Promise<DirectoryEntry>;

/**
 * Keeps garbage collection from freeing what a long upload has stored or found in the repository.
 * While it runs, an incomplete snapshot of Kopia's kind "checkpoint" names everything that is
 * stored so far; each replaces the one before. It stays behind when the upload fails or is killed,
 * and the next run builds on it. At the end of an upload of more than four hours every content is
 * looked for before the snapshot is saved.
 */
export class LongUpload {
  readonly #options: LongUploadOptions;
  readonly #timer: NodeJS.Timeout;
  readonly #sinceStart: Stopwatch;
  readonly #sinceSaved: Stopwatch;
  readonly #sinceTried: Stopwatch;
  #hasFailed = false;
  #running: Promise<void> | undefined;
  #isStopped = false;
  #id: ManifestId | undefined;
  #isConfirmed = false;

  constructor(options: LongUploadOptions) {
    const { clock } = options.repository;
    this.#options = options;
    this.#sinceStart = options.sinceStart;
    this.#sinceSaved = new Stopwatch(clock);
    this.#sinceTried = new Stopwatch(clock);
    this.#timer = setInterval(() => {
      this.#look();
    }, LOOK_EVERY_MS);
    this.#timer.unref();
  }

  /**
   * Whether an upload of more than four hours was never checked: the flush after {@link confirm}
   * took the rest of the time.
   */
  get isUnconfirmed(): boolean {
    return !this.#isConfirmed && this.#isOver(this.#sinceStart, CHECK_AFTER_NS);
  }

  /**
   * The only place that decides whether it is time for a checkpoint or for the check at the end.
   */
  #isOver(watch: Stopwatch, limitNs: bigint): boolean {
    return watch.elapsedNs >= limitNs;
  }

  #look(): void {
    if (this.#isStopped || this.#running) return;
    if (!this.#isOver(this.#sinceSaved, CHECKPOINT_EVERY_NS)) return;
    if (this.#hasFailed && !this.#isOver(this.#sinceTried, RETRY_AFTER_NS)) return;
    this.#sinceTried.restart();
    this.#running = this.#checkpoint().finally(() => {
      this.#running = undefined;
    });
  }

  async #checkpoint(): Promise<void> {
    const { repository, open, compressor, logger, signal } = this.#options;
    try {
      const root = await storeOpenTree(repository, open, compressor, signal);
      if (root) await this.#save(root);
      this.#hasFailed = false;
    } catch (error) {
      // The upload goes on: what a failed flush means for it, the flush after it says.
      this.#hasFailed = true;
      if (signal.aborted) return;
      logger.warn({ error: messageOf(error) }, 'the checkpoint of a long upload failed');
    }
  }

  /** One flush brings the new one and takes the old one away. */
  async #save(root: DirectoryEntry): Promise<void> {
    const { repository, snapshotOf, logger, signal } = this.#options;
    const { contents, manifests } = repository;
    const snapshot = { ...snapshotOf(root), incomplete: CHECKPOINT_REASON, pins: undefined };
    this.remove();
    this.#id = saveSnapshot(repository, snapshot);
    await this.#dropOldCheckpoints(snapshot);
    await repository.flush();
    this.#sinceSaved.restart();
    logger.info(
      { snapshot: this.#id },
      'checkpoint: an incomplete snapshot holds what is stored so far',
    );
    manifests.invalidate();
    await contents.refreshIfOld({ signal });
  }

  /**
   * Runs that were killed leave one each; what retention keeps of them is for the next runs to
   * build on. Nothing goes by a clock that differs from the storage's: to one that is ahead, the
   * checkpoint of a backup which runs elsewhere is old.
   */
  async #dropOldCheckpoints({ source }: NewSnapshot): Promise<void> {
    const { repository, retention, logger } = this.#options;
    const { snapshots } = await listReadableSnapshots(repository, { source });
    const nowNs = repository.clock.nowNs();
    const moment = { nowNs, ...(this.#id !== undefined && { justMade: this.#id }) };
    const expired = expiredSnapshots(snapshots, retention, moment).filter(
      ({ id, incomplete }) => incomplete && id !== this.#id,
    );
    if (expired.length === 0 || !(await isListComplete(repository, logger))) return;
    if (!(await isClockRight(repository, logger))) return;
    for (const { id } of expired) repository.manifests.delete(id);
  }

  /** No checkpoint is made any more; waits for one that is under way. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#running;
  }

  /** Takes the checkpoint away with the next flush: something else names what is stored. */
  remove(): void {
    if (this.#id !== undefined) this.#options.repository.manifests.delete(this.#id);
    this.#id = undefined;
  }

  /**
   * Returns a root whose every content is there. What is missing after an upload of more than four
   * hours, or of one that has come across damage, is stored again. Call it when no checkpoint is
   * made any more. Throws `CONTENTS_LOST`.
   */
  async confirm(root: DirectoryEntry, uploadAgain: UploadAgain): Promise<DirectoryEntry> {
    const { repository, signal, onChecked, logger } = this.#options;
    const isShort = !this.#isOver(this.#sinceStart, CHECK_AFTER_NS);
    // What was taken for whole before the damage was come across may lie in the same pack.
    if (isShort && repository.contents.damaged.found === 0) return root;
    let confirmed = root;
    for (let repairs = 0; ; repairs++) {
      // Named first, looked at then: a collection that begins after this finds all of it.
      await this.#save(confirmed);
      await repository.contents.refresh({ signal });
      const lost = await findLostObjects(repository, confirmed, { signal, onChecked });
      if (lost.count === 0) {
        this.#isConfirmed = true;
        return confirmed;
      }
      const fields = { objects: lost.count };
      logger.warn(fields, 'contents of this upload are missing or damaged; storing them again');
      if (repairs === REPAIRS_MAX) break;
      confirmed = await uploadAgain(confirmed, (id) => lost.has(id));
      if (confirmed.summary?.incomplete !== undefined) return confirmed;
    }
    // The next run must not build on a tree that is not whole.
    this.remove();
    await repository.flush();
    throw new CodedError(
      'CONTENTS_LOST',
      'contents of this backup were deleted from the repository while it ran, and again after they were stored again; find out what deletes them (maintenance with --safety none?) and run the backup again',
    );
  }
}
