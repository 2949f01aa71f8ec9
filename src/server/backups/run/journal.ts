import { journalFolder, journalsFolder, ScratchFile, tarMember } from '../../../archive/index.ts';
import {
  type Clock,
  CodedError,
  formatBytes,
  type Logger,
  mapLimited,
  systemClock,
  unixSeconds,
} from '../../../base/index.ts';
import type { Bucket } from '../../../blob/index.ts';
import type {
  FinishedItem,
  HookCounts,
  ItemJournal,
  ItemSink,
  StartedOperation,
} from '../../../backup/index.ts';
import { idOf } from '../../../backup/index.ts';
import type { AskedSnapshot, VolumeFact } from '../../../backup-volumes/index.ts';
import { StoredItems } from './stored-items.ts';
import { MissingPods, type PodRecord } from './missing-pods.ts';
import { gzipMember, JournalLog } from '../../runs/journal-log.ts';
import { patiently } from '../../runs/bucket-retries.ts';
import type { JournalEntry, Segment, SegmentParts } from '../../runs/segment.ts';
import { SEGMENT_LIMITS, type SegmentLimits, SegmentWriter } from '../../runs/segment-writer.ts';
import { StoredTries } from '../../runs/journal-tries.ts';
import { recordsSchema, type SegmentRecords } from './records.ts';
import { UnknownSnapshots } from './unknown-snapshots.ts';

/** Our choice: a hundred files of small objects. */
const CHUNK_BYTES = 256 << 10;

/**
 * Collects small pieces into one buffer. Keeping each piece would cost most of the memory of a
 * process, because V8 frees small allocations late.
 */
class Pieces {
  readonly #chunks: Buffer[] = [];
  #free: Buffer = Buffer.alloc(0);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  append(piece: Uint8Array): void {
    this.#length += piece.length;
    for (let rest = piece; rest.length > 0;) {
      if (this.#free.length === 0) {
        this.#free = Buffer.allocUnsafeSlow(CHUNK_BYTES);
        this.#chunks.push(this.#free);
      }
      const count = Math.min(rest.length, this.#free.length);
      this.#free.set(rest.subarray(0, count));
      this.#free = this.#free.subarray(count);
      rest = rest.subarray(count);
    }
  }

  whole(): Buffer {
    return Buffer.concat(this.#chunks, this.#length);
  }
}

export interface JournalOptions {
  readonly bucket: Bucket;
  readonly name: string;
  readonly uid: string;
  /** `isJournalSealed` of the Backup. */
  readonly isSealed: boolean;
  /** Scratch space for the whole tarball. */
  readonly directory: string;
  /** Called right before each put. */
  readonly assertLeading: () => void;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly clock?: Clock;
  readonly patienceMs?: number | undefined;
  readonly limits?: JournalLimits;
}

export interface JournalLimits extends SegmentLimits {
  /** Limit of the unpacked tarball; lower in tests. */
  readonly unpackedBytesMax?: number;
}

/** The limit of readers (archive/tarball.ts). */
const UNPACKED_BYTES_MAX = 64 * 2 ** 30;
/**
 * Our choice: backups of days have tens of thousands of segments, and the next backup of the name
 * waits.
 */
const REMOVED_AT_ONCE = 16;

/** Finished work that is not stored yet. */
interface Pending {
  readonly records: SegmentRecords & {
    includes?: string[];
    freezing?: PodRecord[];
    snapshotting?: AskedSnapshot[];
  };
  readonly tar: Pieces;
  readonly log: readonly string[];
}

const newPending = (): Omit<Pending, 'log'> & { bytes: number } => ({
  records: { items: [], thawed: [], entries: [] },
  tar: new Pieces(),
  bytes: 0,
});

async function encode({ records, tar, log }: Pending): Promise<SegmentParts> {
  records.unpackedBytes = tar.length;
  const [packed, tarPart, logPart] = await Promise.all([
    gzipMember(JSON.stringify(records)),
    gzipMember(tar.whole()),
    gzipMember(log.join('')),
  ]);
  return { records: packed, tar: tarPart, log: logPart };
}

/**
 * Records the progress of a backup in the bucket, so that another server can continue it.
 * - Items are stored in segments. If an action of an item has an outside effect, `put` waits until
 *   the segment is stored.
 * - Each try has a number. Its first segment lists the earlier segments that count. No list has the
 *   late segments of a former leader, so they are ignored.
 * - Scratch space holds the stored tarball and log.
 */
export class Journal implements ItemSink, ItemJournal, AsyncDisposable {
  readonly #options: JournalOptions;
  readonly #limits: JournalLimits;
  readonly #segments: SegmentWriter<Pending>;
  readonly #clock: Clock;
  readonly #tar: ScratchFile;
  readonly #log: JournalLog;
  /** Items of earlier tries. */
  readonly #done = new StoredItems();
  /** Pods of earlier tries. */
  readonly #owed = new MissingPods();
  /** Pods of this try. */
  readonly #ownOwed = new MissingPods();
  readonly #unknownSnapshots = new UnknownSnapshots();
  readonly #facts: VolumeFact[] = [];
  readonly #operations: StartedOperation[] = [];
  readonly #entries: JournalEntry[] = [];
  #hooks: HookCounts | undefined;
  #pending = newPending();
  #unpackedBytes = 0;
  #isTarClosed = false;

  private constructor(options: JournalOptions, tar: ScratchFile, log: JournalLog) {
    this.#options = options;
    this.#limits = options.limits ?? SEGMENT_LIMITS;
    this.#clock = options.clock ?? systemClock;
    this.#tar = tar;
    this.#log = log;
    const { bucket, name, uid, assertLeading, logger, signal, patienceMs, limits } = options;
    const { isSealed } = options;
    this.#segments = new SegmentWriter({
      bucket,
      folder: journalFolder(name, uid),
      kind: 'backup',
      assertLeading,
      isSealed,
      logger,
      signal,
      patienceMs,
      limits,
      take: () => this.#taken(),
      encode,
      onStored: async (parts) => {
        if (parts.tar.length > 0) await tar.append(parts.tar);
        await log.append(parts.log);
      },
      onLost: (pending) => {
        log.giveBack(pending.log);
      },
    });
  }

  /**
   * Reads earlier tries, and stores a first segment before anything else. Throws `DAMAGED_JOURNAL`
   * for an unreadable segment: repeating its unknown operations would be wrong. Throws `STILL_AWAY`
   * and `SCRATCH_FULL`.
   */
  static async open(options: JournalOptions): Promise<Journal> {
    const tar = await ScratchFile.create(options.directory);
    try {
      const log = await JournalLog.create(options.directory);
      const journal = new Journal(options, tar, log);
      try {
        await tar.append(await tarMember.version());
        await journal.#read();
        return journal;
      } catch (error) {
        await journal.#close();
        throw error;
      }
    } catch (error) {
      await tar.close().catch(() => undefined);
      throw error;
    }
  }

  /** Whether an earlier try has stored anything. */
  get isContinued(): boolean {
    return this.#segments.isContinued;
  }

  get facts(): readonly VolumeFact[] {
    return this.#facts;
  }

  /** Operations of earlier tries. */
  get operations(): readonly StartedOperation[] {
    return this.#operations;
  }

  /** Warnings and errors of earlier tries. */
  get entries(): readonly JournalEntry[] {
    return this.#entries;
  }

  get hooks(): HookCounts | undefined {
    return this.#hooks;
  }

  async #read(): Promise<void> {
    const { bucket, name, uid, isSealed, signal, logger, patienceMs } = this.#options;
    const tries = new StoredTries({
      bucket,
      isSealed,
      signal,
      folder: journalFolder(name, uid),
      kind: 'backup',
      schema: recordsSchema,
      patiently: (what, task) => patiently(task, { what, logger, signal, patienceMs }),
    });
    const last = await tries.last();
    this.#segments.follow(last);
    for await (const segment of tries.segments(last)) await this.#take(segment);
    this.#pending.records.includes = [...last.keys];
    await this.flush();
  }

  async #take({ records, tar, log }: Segment<SegmentRecords>): Promise<void> {
    this.#owed.take(records);
    this.#unknownSnapshots.take(records);
    for (const { k, ns, n, t, as, ops = [], facts = [] } of records.items) {
      this.#done.add({ kind: k, namespace: ns, name: n, type: t, as });
      this.#operations.push(...(ops as unknown as StartedOperation[]));
      this.#facts.push(...facts);
    }
    this.#entries.push(...records.entries);
    this.#hooks = records.hooks ?? this.#hooks;
    this.#unpackedBytes += records.unpackedBytes ?? 0;
    if (tar.length > 0) await this.#tar.append(tar);
    await this.#log.append(log);
  }

  isNameTaken(type: string, id: string): boolean {
    return this.#done.isNameTaken(type, id);
  }

  isDone(kind: string, id: string): boolean {
    return this.#done.has(kind, id);
  }

  owesPostHooks(kind: string, id: string): boolean {
    const [namespace, name] = id.includes('/') ? id.split('/', 2) : ['', id];
    return this.#owed.has({ k: kind, ns: namespace ?? '', n: name ?? '' });
  }

  owed(): { namespace: string; name: string }[] {
    const own = this.#ownOwed.all();
    const ids = new Set(own.map((pod) => idOf(pod)));
    return [...own, ...this.#owed.all().filter((pod) => !ids.has(idOf(pod)))];
  }

  all(): Iterable<{ kind: string; id: string; type: string | undefined }> {
    return this.#done.all();
  }

  async put(item: FinishedItem): Promise<void> {
    this.#segments.assertUsable();
    const { kind: k, namespace: ns, name: n, files, operations, facts, owesPostHooks } = item;
    const { storedAs } = item;
    this.#unknownSnapshots.done(k, n);
    const mtime = unixSeconds(this.#clock.nowNs());
    for (const { path, bytes } of files) {
      const before = this.#pending.tar.length;
      for (const piece of tarMember.entry({ path, bytes, mtime })) this.#pending.tar.append(piece);
      this.#packed(this.#pending.tar.length - before);
    }
    const type = files[0]?.path.split('/')[1];
    this.#pending.records.items.push({
      k,
      ns,
      n,
      ...(type !== undefined && { t: type }),
      ...(storedAs && { as: idOf(storedAs) }),
      ...(owesPostHooks && { o: 1 as const }),
      ...(operations.length > 0 && { ops: operations.map((operation) => ({ ...operation })) }),
      ...(facts.length > 0 && { facts: facts.map((fact) => ({ ...fact })) }),
    });
    this.#added(k.length + ns.length + n.length + 64);
    if (item.hasEffect || this.#segments.isFull) await this.flush();
    else this.#segments.flushLater();
  }

  async willFreeze({ kind: k, namespace: ns, name: n }: FinishedPod): Promise<void> {
    this.#segments.assertUsable();
    this.#ownOwed.add({ k, ns, n });
    (this.#pending.records.freezing ??= []).push({ k, ns, n });
    this.#added(k.length + ns.length + n.length);
    await this.flush();
  }

  /** Called before each request to a provider for a snapshot. */
  async willSnapshot(asked: AskedSnapshot): Promise<void> {
    this.#segments.assertUsable();
    this.#unknownSnapshots.add(asked);
    (this.#pending.records.snapshotting ??= []).push({ ...asked });
    this.#added(asked.pv.length + asked.volume.length + asked.location.length);
    await this.flush();
  }

  /**
   * Reports snapshots of all tries whose id is unknown, each once. `tell` must log them: the
   * journal stores the log and the report together.
   */
  tellUnknownSnapshots(tell: (asked: AskedSnapshot) => void): void {
    const all = this.#unknownSnapshots.all();
    if (all.length === 0) return;
    this.#unknownSnapshots.clear();
    this.#pending.records.toldOf = all.map(({ pv }) => pv);
    for (const asked of all) tell(asked);
  }

  async postHooksDone({ kind: k, namespace: ns, name: n }: FinishedPod): Promise<void> {
    this.#owed.delete({ k, ns, n });
    this.#ownOwed.delete({ k, ns, n });
    this.#segments.assertUsable();
    this.#pending.records.thawed.push({ k, ns, n });
    await this.flush();
  }

  hooksRan(counts: HookCounts): void {
    this.#pending.records.hooks = counts;
  }

  /** `line` includes its line break. */
  addLine(line: string): void {
    this.#log.add(line);
    this.#added(line.length);
    this.#segments.flushLater();
  }

  addEntry(entry: JournalEntry): void {
    this.#pending.records.entries.push(entry);
    this.#added(entry.text.length + 32);
    this.#segments.flushLater();
  }

  #packed(bytes: number): void {
    this.#added(bytes);
    this.#unpackedBytes += bytes;
    const { unpackedBytesMax = UNPACKED_BYTES_MAX } = this.#limits;
    if (this.#unpackedBytes <= unpackedBytesMax) return;
    const text = `the tarball of the backup could not be read again: it would unpack to more than ${formatBytes(unpackedBytesMax)}`;
    throw new CodedError('CONTENT_TOO_LONG', text);
  }

  #added(bytes: number): void {
    this.#pending.bytes += bytes;
    this.#segments.added(bytes);
  }

  #taken(): Pending | undefined {
    const pending = this.#pending;
    const { includes, thawed } = pending.records;
    if (pending.bytes === 0 && includes === undefined && thawed.length === 0) return undefined;
    this.#pending = newPending();
    return { ...pending, log: this.#log.take() };
  }

  /** Throws `STILL_AWAY` and `SCRATCH_FULL`, and again at every later call. */
  flush(): Promise<void> {
    return this.#segments.flush();
  }

  /** The complete tarball and log, until the journal closes. Puts nothing afterwards. */
  async finish(): Promise<{ readonly contents: ScratchFile; readonly log: ScratchFile }> {
    await this.flush();
    await this.#tar.append(await tarMember.end());
    this.#tar.finish();
    return { contents: this.#tar, log: await this.#finishedLog() };
  }

  /**
   * The log of a failed backup, including lines that are not in the bucket. Frees the space of the
   * tarball first, because scratch space may be full.
   */
  async finishLog(): Promise<ScratchFile> {
    await this.#segments.end('the backup has failed');
    await this.#segments.alone(() => this.#closeTar());
    return await this.#finishedLog();
  }

  async #closeTar(): Promise<void> {
    if (this.#isTarClosed) return;
    this.#isTarClosed = true;
    await this.#tar.close();
  }

  #finishedLog(): Promise<ScratchFile> {
    return this.#segments.alone(() => this.#log.finish());
  }

  async #close(): Promise<void> {
    await this.#segments.close();
    await this.#closeTar();
    await this.#log.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#close();
  }
}

type FinishedPod = Pick<FinishedItem, 'kind' | 'namespace' | 'name'>;

/** Removes the journals of all backups of a name, or only that of a UID. */
export async function removeJournals(
  bucket: Bucket,
  name: string,
  signal: AbortSignal,
  uid?: string,
): Promise<void> {
  const folder = uid === undefined ? journalsFolder(name) : journalFolder(name, uid);
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
