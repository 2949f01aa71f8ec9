import {
  CodedError,
  HOUR_NS,
  type Logger,
  messageOf,
  MINUTE_NS,
  Stopwatch,
} from '../../base/index.ts';
import type { Compressor } from '../../codec/index.ts';
import type { ManifestId, ObjectId, Repository } from '../../repository/index.ts';
import {
  type DirectoryEntry,
  expiredSnapshots,
  listReadableSnapshots,
  type NewSnapshot,
  type Policy,
  saveSnapshot,
} from '../../snapshot/index.ts';
import { isClockRight, isListComplete } from '../apply-retention.ts';
import type { OpenTree } from './open-tree.ts';
import { CHECKPOINT_REASON, storeOpenTree } from './open-tree-store.ts';
import { findLostObjects } from './tree-check.ts';

/** Kopia's interval (snapshot/upload/upload.go, DefaultCheckpointInterval). */
const CHECKPOINT_EVERY_NS = 45n * MINUTE_NS;
/** Delay before a retry after a failure. Our choice. */
const RETRY_AFTER_NS = 5n * MINUTE_NS;
/**
 * Longer uploads are checked before they count. Garbage collections more than four hours apart
 * delete contents that neither could reach (Kopia: maintenance_safety.go, MarginBetweenSnapshotGC).
 */
const CHECK_AFTER_NS = 4n * HOUR_NS;
const REPAIRS_MAX = 2;
/** Interval of checks of the time. */
const LOOK_EVERY_MS = 250;

export interface LongUploadOptions {
  /** Runs from before the index was read for this upload. */
  readonly sinceStart: Stopwatch;
  readonly repository: Repository;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** Records the stored entries. */
  readonly open: OpenTree;
  readonly compressor: Compressor | undefined;
  readonly retention: Policy['retention'];
  /** The snapshot with this root, unsaved. */
  readonly snapshotOf: (root: DirectoryEntry) => NewSnapshot;
  readonly onChecked: () => void;
}

/** Stores a tree again, and reads files with lost objects again. */
export type UploadAgain = (
  root: DirectoryEntry,
  isLost: (id: ObjectId) => boolean,
) => Promise<DirectoryEntry>;

/**
 * Protects the data of a long upload from garbage collection: stored contents, and reused contents.
 * While it runs, an incomplete snapshot of Kopia's kind "checkpoint" names everything stored so
 * far. Each replaces the one before. The checkpoint stays after a failure or a kill, and the next
 * run builds on it. At the end of an upload of more than four hours, every content is looked up
 * before the snapshot is saved.
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
   * Whether an upload of more than four hours was never checked, because the flush after {@link
   * confirm} took the rest of the time.
   */
  get isUnconfirmed(): boolean {
    return !this.#isConfirmed && this.#isOver(this.#sinceStart, CHECK_AFTER_NS);
  }

  /** All decisions about checkpoints and the final check use this. */
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
      // The upload continues. If the flush failed for good, a later flush fails too.
      this.#hasFailed = true;
      if (signal.aborted) return;
      logger.warn({ error: messageOf(error) }, 'the checkpoint of a long upload failed');
    }
  }

  /** A single flush stores the new checkpoint and deletes the old one. */
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
   * Each killed run leaves a checkpoint. Retention keeps some for the next runs to build on.
   * Deletes nothing if the clock differs from the storage's: a clock that is ahead makes the
   * checkpoint of another running backup look old.
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

  /** Stops checkpoints, and waits for a running one. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#running;
  }

  /** Removes the checkpoint with the next flush, because the snapshot now names everything. */
  remove(): void {
    if (this.#id !== undefined) this.#options.repository.manifests.delete(this.#id);
    this.#id = undefined;
  }

  /**
   * Returns a root with all contents in place. Checks an upload that took more than four hours, or
   * that found damage, and stores missing contents again. Call it after the last checkpoint. Throws
   * `CONTENTS_LOST`.
   */
  async confirm(root: DirectoryEntry, uploadAgain: UploadAgain): Promise<DirectoryEntry> {
    const { repository, signal, onChecked, logger } = this.#options;
    const isShort = !this.#isOver(this.#sinceStart, CHECK_AFTER_NS);
    // Contents that counted as whole before the damage was found may be in the same pack.
    if (isShort && repository.contents.damaged.found === 0) return root;
    let confirmed = root;
    for (let repairs = 0; ; repairs++) {
      // Save the root before the check. A collection that starts later then finds all contents.
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
    // The next run must not build on an incomplete tree.
    this.remove();
    await repository.flush();
    throw new CodedError(
      'CONTENTS_LOST',
      'contents of this backup were deleted from the repository while it ran, and again after they were stored again; find out what deletes them (maintenance with --safety none?) and run the backup again',
    );
  }
}
