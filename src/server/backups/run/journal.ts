import { ScratchFile, tarMember } from '../../../archive/index.ts';
import { CodedError, formatBytes, unixSeconds } from '../../../base/index.ts';
import type {
  FinishedItem,
  HookCounts,
  ItemJournal,
  ItemSink,
  StartedOperation,
} from '../../../backup/index.ts';
import { idOf } from '../../../backup/index.ts';
import type { AskedSnapshot, VolumeFact } from '../../../backup-volumes/index.ts';
import { Journal, type JournalOptions } from '../../runs/journal.ts';
import { JournalLog } from '../../runs/journal-log.ts';
import type { SegmentLimits } from '../../runs/segment-writer.ts';
import { StoredItems } from './stored-items.ts';
import { MissingPods } from './missing-pods.ts';
import { BACKUP_JOURNAL, type SegmentRecords } from './records.ts';
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

export interface BackupJournalOptions extends JournalOptions {
  readonly limits?: JournalLimits;
}

export interface JournalLimits extends SegmentLimits {
  /** Limit of the unpacked tarball; lower in tests. */
  readonly unpackedBytesMax?: number;
}

/** The limit of readers (archive/tarball.ts). */
const UNPACKED_BYTES_MAX = 64 * 2 ** 30;
/**
 * The journal of a backup, with the items of its tarball. If an action of an item has an outside
 * effect, `put` waits until the segment is stored. Scratch space holds the stored tarball.
 */
export class BackupJournal extends Journal<SegmentRecords> implements ItemSink, ItemJournal {
  readonly #unpackedBytesMax: number;
  readonly #tar: ScratchFile;
  /** Items of earlier tries. */
  readonly #done = new StoredItems();
  /** Pods of earlier tries. */
  readonly #owed = new MissingPods();
  /** Pods of this try. */
  readonly #ownOwed = new MissingPods();
  readonly #unknownSnapshots = new UnknownSnapshots();
  readonly #facts: VolumeFact[] = [];
  readonly #operations: StartedOperation[] = [];
  #hooks: HookCounts | undefined;
  #pieces = new Pieces();
  #unpackedBytes = 0;

  private constructor(options: BackupJournalOptions, tar: ScratchFile, log: JournalLog) {
    super(BACKUP_JOURNAL, options, { tar, log });
    this.#unpackedBytesMax = options.limits?.unpackedBytesMax ?? UNPACKED_BYTES_MAX;
    this.#tar = tar;
  }

  /** {@link Journal.read}. The scratch space is for the whole tarball. */
  static async open(options: BackupJournalOptions): Promise<BackupJournal> {
    await using opening = new AsyncDisposableStack();
    const tar = opening.use(await ScratchFile.create(options.directory));
    const log = opening.use(await JournalLog.create(options.directory));
    const journal = opening.use(new BackupJournal(options, tar, log));
    await tar.append(await tarMember.version());
    await journal.read();
    opening.move();
    return journal;
  }

  get facts(): readonly VolumeFact[] {
    return this.#facts;
  }

  /** Operations of earlier tries. */
  get operations(): readonly StartedOperation[] {
    return this.#operations;
  }

  get hooks(): HookCounts | undefined {
    return this.#hooks;
  }

  protected override take(records: SegmentRecords): void {
    this.#owed.take(records);
    this.#unknownSnapshots.take(records);
    for (const { k, ns, n, t, as, ops = [], facts = [] } of records.items) {
      this.#done.add({ kind: k, namespace: ns, name: n, type: t, as });
      this.#operations.push(...(ops as unknown as StartedOperation[]));
      this.#facts.push(...facts);
    }
    this.#hooks = records.hooks ?? this.#hooks;
    this.#unpackedBytes += records.unpackedBytes ?? 0;
  }

  protected override takeTar(): Uint8Array {
    const tar = this.#pieces.whole();
    this.#pieces = new Pieces();
    this.records.unpackedBytes = tar.length;
    return tar;
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
    this.segments.assertUsable();
    const { kind: k, namespace: ns, name: n, files, operations, facts, owesPostHooks } = item;
    const { storedAs } = item;
    this.#unknownSnapshots.done(k, n);
    const mtime = unixSeconds(this.clock.nowNs());
    for (const { path, bytes } of files) {
      const before = this.#pieces.length;
      for (const piece of tarMember.entry({ path, bytes, mtime })) this.#pieces.append(piece);
      this.#packed(this.#pieces.length - before);
    }
    const type = files[0]?.path.split('/')[1];
    this.records.items.push({
      k,
      ns,
      n,
      ...(type !== undefined && { t: type }),
      ...(storedAs && { as: idOf(storedAs) }),
      ...(owesPostHooks && { o: 1 as const }),
      ...(operations.length > 0 && { ops: operations.map((operation) => ({ ...operation })) }),
      ...(facts.length > 0 && { facts: facts.map((fact) => ({ ...fact })) }),
    });
    this.added(k.length + ns.length + n.length + 64);
    if (item.hasEffect || this.segments.isFull) await this.flush();
    else this.segments.flushLater();
  }

  async willFreeze({ kind: k, namespace: ns, name: n }: FinishedPod): Promise<void> {
    this.segments.assertUsable();
    this.#ownOwed.add({ k, ns, n });
    (this.records.freezing ??= []).push({ k, ns, n });
    this.added(k.length + ns.length + n.length);
    await this.flush();
  }

  /** Called before each request to a provider for a snapshot. */
  async willSnapshot(asked: AskedSnapshot): Promise<void> {
    this.segments.assertUsable();
    this.#unknownSnapshots.add(asked);
    (this.records.snapshotting ??= []).push({ ...asked });
    this.added(asked.pv.length + asked.volume.length + asked.location.length);
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
    this.records.toldOf = all.map(({ pv }) => pv);
    for (const asked of all) tell(asked);
  }

  async postHooksDone({ kind: k, namespace: ns, name: n }: FinishedPod): Promise<void> {
    this.#owed.delete({ k, ns, n });
    this.#ownOwed.delete({ k, ns, n });
    this.segments.assertUsable();
    this.records.thawed.push({ k, ns, n });
    this.added(0);
    await this.flush();
  }

  hooksRan(counts: HookCounts): void {
    this.records.hooks = counts;
  }

  #packed(bytes: number): void {
    this.added(bytes);
    this.#unpackedBytes += bytes;
    if (this.#unpackedBytes <= this.#unpackedBytesMax) return;
    const text = `the tarball of the backup could not be read again: it would unpack to more than ${formatBytes(this.#unpackedBytesMax)}`;
    throw new CodedError('CONTENT_TOO_LONG', text);
  }

  /** The complete tarball and log, until the journal closes. Puts nothing afterwards. */
  async finish(): Promise<{ readonly contents: ScratchFile; readonly log: ScratchFile }> {
    await this.flush();
    await this.#tar.append(await tarMember.end());
    this.#tar.finish();
    return { contents: this.#tar, log: await this.finishedLog() };
  }
}

type FinishedPod = Pick<FinishedItem, 'kind' | 'namespace' | 'name'>;
