import type { z } from 'zod';
import type { ScratchFile } from '../../archive/index.ts';
import {
  type Clock,
  isCode,
  type Logger,
  mapLimited,
  messageOf,
  systemClock,
} from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { gzipMember, type JournalLog } from './journal-log.ts';
import { patiently } from './bucket-retries.ts';
import type { LogSink } from './run-log.ts';
import type { JournalEntry, Segment, SegmentParts, TryRecords } from './segment.ts';
import { type SegmentLimits, SegmentWriter } from './segment-writer.ts';
import { readSegment, SEGMENT_UNREAD, StoredTries } from './journal-tries.ts';

/** Fields that the records of both kinds have. */
export interface RunRecords extends TryRecords {
  readonly entries: JournalEntry[];
}

/** The differences between the journals of backups and restores. */
export interface JournalKind<R extends RunRecords> {
  /** Used in messages and as a field of the log. */
  readonly word: 'backup' | 'restore';
  readonly folderOf: (name: string, uid: string) => string;
  readonly schema: z.ZodType<R>;
  readonly newRecords: () => R;
}

/** The journal of one run in its bucket. */
export interface JournalPlace {
  readonly bucket: Bucket;
  readonly name: string;
  readonly uid: string;
  /** `isJournalSealed` of the Backup or Restore. */
  readonly isSealed: boolean;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

export interface JournalOptions extends JournalPlace {
  readonly directory: string;
  /** Called right before each put. */
  readonly assertLeading: () => void;
  readonly clock?: Clock | undefined;
  readonly patienceMs?: number | undefined;
  readonly limits?: SegmentLimits | undefined;
}

/** Scratch space of a journal. */
export interface JournalScratch {
  readonly log: JournalLog;
  /** The stored part of the tarball. Backups only. */
  readonly tar?: ScratchFile;
}

/** Finished work that is not stored yet. */
interface Pending<R> {
  readonly records: R;
  readonly tar: Uint8Array;
  readonly log: readonly string[];
}

const NOTHING = Buffer.alloc(0);
/**
 * Our choice: backups of days have tens of thousands of segments, and the next backup of the name
 * waits.
 */
const REMOVED_AT_ONCE = 16;

/**
 * Records the progress of a run in the bucket, so that another server can continue it. Work is
 * stored in segments, with the warnings, errors and log lines of the run.
 * - Each try has a number. Its first segment lists the earlier segments that count. No list has the
 *   late segments of a former leader, so they are ignored.
 * - A subclass adds the records of its kind.
 */
export abstract class Journal<R extends RunRecords> implements LogSink, AsyncDisposable {
  protected readonly clock: Clock;
  protected readonly segments: SegmentWriter<Pending<R>>;
  /** Records that are not stored yet. */
  protected records: R;
  readonly #kind: JournalKind<R>;
  readonly #options: JournalOptions;
  readonly #scratch: JournalScratch;
  readonly #entries: JournalEntry[] = [];
  #isChanged = false;

  protected constructor(kind: JournalKind<R>, options: JournalOptions, scratch: JournalScratch) {
    this.clock = options.clock ?? systemClock;
    this.records = kind.newRecords();
    this.#kind = kind;
    this.#options = options;
    this.#scratch = scratch;
    const { tar, log } = scratch;
    this.segments = new SegmentWriter({
      ...options,
      folder: kind.folderOf(options.name, options.uid),
      kind: kind.word,
      take: () => this.#taken(),
      encode,
      onStored: async (parts) => {
        if (parts.tar.length > 0) await tar?.append(parts.tar);
        await log.append(parts.log);
      },
      onLost: (pending) => {
        log.giveBack(pending.log);
      },
    });
  }

  /** Takes over the records of an earlier try. */
  protected abstract take(records: R): void;

  /** Called after all earlier tries, before the first segment is stored. */
  protected resumed(): void {
    // Backups do nothing here.
  }

  /** Removes and returns the part of the tarball that is not stored yet. */
  protected takeTar(): Uint8Array {
    return NOTHING;
  }

  /**
   * Reads earlier tries, and stores a first segment before anything else. Throws `DAMAGED_JOURNAL`
   * for an unreadable segment: repeating its unknown operations would be wrong. Throws `STILL_AWAY`
   * and `SCRATCH_FULL`.
   */
  protected async read(): Promise<void> {
    const { bucket, name, uid, isSealed, signal, logger, patienceMs } = this.#options;
    const { word: kind, folderOf, schema } = this.#kind;
    const tries = new StoredTries({
      bucket,
      isSealed,
      signal,
      kind,
      schema,
      folder: folderOf(name, uid),
      patiently: (what, task) => patiently(task, { what, logger, signal, patienceMs }),
    });
    const last = await tries.last();
    this.segments.follow(last);
    for await (const segment of tries.segments(last)) await this.#take(segment);
    this.resumed();
    this.records.includes = [...last.keys];
    this.added(0);
    await this.flush();
  }

  async #take({ records, tar, log }: Segment<R>): Promise<void> {
    this.take(records);
    this.#entries.push(...records.entries);
    if (tar.length > 0) await this.#scratch.tar?.append(tar);
    await this.#scratch.log.append(log);
  }

  /** Whether an earlier try has stored anything. */
  get isContinued(): boolean {
    return this.segments.isContinued;
  }

  /** Warnings and errors of earlier tries. */
  get entries(): readonly JournalEntry[] {
    return this.#entries;
  }

  /** `line` includes its line break. */
  addLine(line: string): void {
    this.#scratch.log.add(line);
    this.added(line.length);
    this.segments.flushLater();
  }

  addEntry(entry: JournalEntry): void {
    this.records.entries.push(entry);
    this.added(entry.text.length + 32);
    this.segments.flushLater();
  }

  /** Call it after each change of the records that must be stored. */
  protected added(bytes: number): void {
    this.#isChanged = true;
    this.segments.added(bytes);
  }

  #taken(): Pending<R> | undefined {
    if (!this.#isChanged) return undefined;
    const pending = { tar: this.takeTar(), records: this.records, log: this.#scratch.log.take() };
    this.records = this.#kind.newRecords();
    this.#isChanged = false;
    return pending;
  }

  /** Throws `STILL_AWAY` and `SCRATCH_FULL`, and again at every later call. */
  flush(): Promise<void> {
    return this.segments.flush();
  }

  /**
   * The log of a failed run, including lines that are not in the bucket. Frees the space of the
   * tarball first, because scratch space may be full.
   */
  async finishLog(): Promise<ScratchFile> {
    await this.segments.end(`the ${this.#kind.word} has failed`);
    await this.segments.alone(() => this.#scratch.tar?.close());
    return await this.finishedLog();
  }

  protected finishedLog(): Promise<ScratchFile> {
    return this.segments.alone(() => this.#scratch.log.finish());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.segments.close();
    await this.#scratch.tar?.close();
    await this.#scratch.log[Symbol.asyncDispose]();
  }
}

async function encode<R>({ records, tar, log }: Pending<R>): Promise<SegmentParts> {
  const [packed, tarPart, logPart] = await Promise.all([
    gzipMember(JSON.stringify(records)),
    gzipMember(tar),
    gzipMember(log.join('')),
  ]);
  return { records: packed, tar: tarPart, log: logPart };
}

/**
 * The records of all segments, also of a damaged journal. Skips and logs untrusted segments. Throws
 * errors of the bucket.
 */
export async function* readableRecords<R extends RunRecords>(
  { word, folderOf, schema }: JournalKind<R>,
  { bucket, name, uid, isSealed, logger, signal }: JournalPlace,
): AsyncGenerator<R> {
  const keys = await Array.fromAsync(bucket.list(folderOf(name, uid), { signal }));
  for (const key of keys.sort()) {
    try {
      yield (await readSegment(bucket, key, { schema, isSealed, signal })).records;
    } catch (error) {
      if (!isCode(error, 'DAMAGED_JOURNAL', 'BLOB_NOT_FOUND', 'JOURNAL_NOT_KEPT')) throw error;
      logger.warn({ [word]: name, error: messageOf(error) }, SEGMENT_UNREAD);
    }
  }
}

/** Removes the objects of a folder of journals. Throws errors of the bucket. */
export async function removeJournals(
  bucket: Bucket,
  folder: string,
  signal: AbortSignal,
): Promise<void> {
  const remove = (keys: readonly string[]): Promise<unknown> =>
    mapLimited(keys, REMOVED_AT_ONCE, (key) => bucket.delete(key, { signal }));
  let keys: string[] = [];
  for await (const key of bucket.list(folder, { signal })) {
    keys.push(key);
    if (keys.length < REMOVED_AT_ONCE * 16) continue;
    await remove(keys);
    keys = [];
  }
  await remove(keys);
}
