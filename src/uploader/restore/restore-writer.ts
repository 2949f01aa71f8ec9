import { createLimiter, isCode, type Limiter } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import type {
  NotSet,
  OpenFailure,
  OpenItem,
  OpenResult,
  ThreadPool,
} from '../../volume-files/index.ts';
import { hashOf, type IndexEntry, type Repository } from '../../repository/index.ts';

/** A content to write to a file. */
export interface ContentWrite {
  readonly entry: IndexEntry;
  readonly compressedObject: boolean;
  readonly target: OpenItem['target'];
}

interface Waiting {
  readonly write: ContentWrite;
  readonly resolve: (notSet: NotSet) => void;
  readonly reject: (error: unknown) => void;
}

interface Range {
  readonly packBlobId: string;
  readonly start: number;
  end: number;
  readonly items: Waiting[];
}

/**
 * Bytes of a pack that are read and held at once. Our choice: twice as much is no faster, even from
 * S3, and takes 10 MiB more.
 */
const RANGE_BYTES_MAX = 8 << 20;
/** Writes that are planned together, to find neighbours in the packs. Our choice. */
const WINDOW_WRITES = 2048;
const WINDOW_BYTES = 48 << 20;
/** Largest gap between two wanted contents that is read along instead of a second request. */
const GAP_BYTES_MAX = 256 << 10;
/** A partial window is restored after this time: its callers may wait for it. */
const WINDOW_MS_MAX = 20;
/** Bytes of plaintext in one task of a thread. */
const TASK_BYTES = 4 << 20;

/** Reads contents pack by pack, each range once. Threads decrypt and write them. */
export class RestoreWriter {
  readonly #repository: Repository;
  readonly #pool: ThreadPool;
  readonly #ranges: Limiter;
  readonly #signal: AbortSignal;
  #window: Waiting[] = [];
  #windowBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  /** Ranges that are being read, or wait to be read. */
  #unread = 0;
  #isDue = false;

  constructor(repository: Repository, signal: AbortSignal) {
    const { dataPath } = repository;
    if (!dataPath) throw new TypeError('a restore needs a repository opened with a data path');
    this.#repository = repository;
    this.#pool = dataPath.pool;
    this.#signal = signal;
    // Leaves one buffer free for others.
    this.#ranges = createLimiter(dataPath.pool.threads + 2);
  }

  /** Resolves with the attributes that could not be set, once the bytes are written. */
  add(write: ContentWrite): Promise<NotSet> {
    return new Promise((resolve, reject) => {
      this.#plan({ write, resolve, reject });
    });
  }

  #plan(item: Waiting): void {
    this.#window.push(item);
    this.#windowBytes += item.write.entry.packedLength;
    if (this.#window.length >= WINDOW_WRITES || this.#windowBytes >= WINDOW_BYTES) this.#send();
    else this.#timer ??= setTimeout(() => this.#send(), WINDOW_MS_MAX);
  }

  /**
   * Restores the planned writes. While all threads are busy, writes of other directories may join:
   * small directories are often neighbours in a pack and share a request.
   */
  flush(): void {
    if (this.#unread < this.#pool.threads) this.#send();
    else this.#isDue = true;
  }

  #send(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#isDue = false;
    const window = this.#window;
    this.#window = [];
    this.#windowBytes = 0;
    const { bufferBytes } = this.#repository.contents.packBuffers;
    for (const range of planRanges(window, Math.min(bufferBytes, RANGE_BYTES_MAX))) {
      this.#unread++;
      this.#ranges
        .run(() => this.#restore(range))
        .catch((error: unknown) => {
          for (const { reject } of range.items) reject(error);
        })
        .finally(() => {
          this.#unread--;
          if (this.#isDue) this.flush();
        });
    }
  }

  async #restore(range: Range): Promise<void> {
    const { packBuffers } = this.#repository.contents;
    const buffer = await packBuffers.acquire();
    try {
      this.#signal.throwIfAborted();
      const loaded = await this.#load(range, buffer);
      const tasks = splitByBytes(loaded).map((items) => this.#open(range, items, buffer));
      const results = await Promise.allSettled(tasks);
      const failed = results.find((result) => result.status === 'rejected');
      if (failed) throw failed.reason;
    } finally {
      packBuffers.release(buffer);
    }
  }

  async #load({ packBlobId, start, end, items }: Range, buffer: Uint8Array): Promise<Waiting[]> {
    try {
      await this.#repository.storage.getBlob(blobId(packBlobId), {
        offset: start,
        lengthBytes: end - start,
        into: buffer,
        signal: this.#signal,
      });
    } catch (error) {
      const first = (items[0] as Waiting).write.entry;
      // Perhaps only one content is outside the pack. Separate requests tell which.
      if (items.length > 1 && isCode(error, 'INVALID_RANGE')) {
        return this.#loadOneByOne(items, start, buffer);
      }
      if (isCode(error, 'BLOB_NOT_FOUND')) {
        await this.#follow(items, error);
        return [];
      }
      if (isCode(error, 'INVALID_RANGE')) await this.#repository.contents.getPacked(first);
      throw error;
    }
    return items;
  }

  /** Plans contents again that maintenance has moved to other packs. Other contents are lost. */
  async #follow(items: readonly Waiting[], missing: unknown): Promise<void> {
    const { contents } = this.#repository;
    const moved: Waiting[] = [];
    const lost: Waiting[] = [];
    for (const item of items) {
      const entry = await contents.findMoved(item.write.entry);
      if (entry) moved.push({ ...item, write: { ...item.write, entry } });
      else lost.push(item);
    }
    const [first] = lost;
    // A request for one content throws the exact error.
    const told = first && contents.getPacked(first.write.entry).then(() => missing);
    const error = await told?.catch((cause: unknown) => cause);
    for (const item of lost) item.reject(error);
    for (const item of moved) this.#plan(item);
  }

  /** Returns only the loaded items. A rejected item's file may be closed already. */
  async #loadOneByOne(
    items: readonly Waiting[],
    start: number,
    buffer: Uint8Array,
  ): Promise<Waiting[]> {
    const loaded: Waiting[] = [];
    for (const item of items) {
      const { entry } = item.write;
      try {
        buffer.set(await this.#repository.contents.getPacked(entry), entry.packOffset - start);
        loaded.push(item);
      } catch (error) {
        item.reject(error);
      }
    }
    return loaded;
  }

  async #open(range: Range, items: readonly Waiting[], buffer: Uint8Array): Promise<void> {
    const damaged: Waiting[] = [];
    const { failures, notSet } = await this.#tryOpen(range, items, buffer);
    for (const failure of failures) {
      const item = items[failure.index] as Waiting;
      if (isDamage(failure)) damaged.push(item);
      else item.reject(this.#failure(item.write.entry, failure));
    }
    // Bytes may have changed in transit. Request each content again.
    for (const item of damaged) await this.#openAgain(range, item, buffer);
    for (const [index, lacking] of notSet) items[index]?.resolve(lacking);
    for (const { resolve } of items) resolve(0);
  }

  async #openAgain(range: Range, item: Waiting, buffer: Uint8Array): Promise<void> {
    const { entry } = item.write;
    try {
      const packed = await this.#repository.contents.getPacked(entry, { fresh: true });
      buffer.set(packed, entry.packOffset - range.start);
      const { failures, notSet } = await this.#tryOpen(range, [item], buffer);
      const [failure] = failures;
      if (failure) item.reject(this.#failure(entry, failure));
      for (const [, lacking] of notSet) item.resolve(lacking);
    } catch (error) {
      item.reject(error);
    }
  }

  #tryOpen(range: Range, items: readonly Waiting[], buffer: Uint8Array): Promise<OpenResult> {
    return this.#pool.open(
      items.map(({ write: { entry, target, compressedObject } }) => ({
        span: {
          address: buffer.byteOffset + entry.packOffset - range.start,
          length: entry.packedLength,
        },
        hash: hashOf(entry.contentId),
        compressionHeaderId: entry.compressionHeaderId,
        originalLength: entry.originalLength,
        compressedObject,
        target,
      })),
    );
  }

  #failure({ packBlobId, contentId }: IndexEntry, failure: OpenFailure): Error {
    const { code, message } = failure;
    const text = isDamage(failure)
      ? `blob ${packBlobId} is damaged: content ${contentId}: ${message}`
      : message;
    return Object.assign(new Error(text), { code: isDamage(failure) ? 'DAMAGED_BLOB' : code });
  }
}

const isDamage = ({ code }: OpenFailure): boolean =>
  code === 'DECRYPT_FAILED' || code === 'BAD_COMPRESSION';

function planRanges(window: readonly Waiting[], bytesMax: number): Range[] {
  const sorted = window.toSorted(({ write: { entry: a } }, { write: { entry: b } }) => {
    if (a.packBlobId !== b.packBlobId) return a.packBlobId < b.packBlobId ? -1 : 1;
    return a.packOffset - b.packOffset;
  });
  const ranges: Range[] = [];
  for (const item of sorted) {
    const { packBlobId, packOffset, packedLength } = item.write.entry;
    const end = packOffset + packedLength;
    const last = ranges.at(-1);
    const joins =
      last?.packBlobId === packBlobId &&
      packOffset - last.end <= GAP_BYTES_MAX &&
      Math.max(end, last.end) - last.start <= bytesMax;
    if (joins) {
      last.end = Math.max(last.end, end);
      last.items.push(item);
    } else {
      ranges.push({ packBlobId, start: packOffset, end, items: [item] });
    }
  }
  return ranges;
}

function splitByBytes(items: readonly Waiting[]): Waiting[][] {
  const tasks: Waiting[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const item of items) {
    const { originalLength } = item.write.entry;
    if (bytes + originalLength > TASK_BYTES) {
      tasks.push([]);
      bytes = 0;
    }
    tasks.at(-1)?.push(item);
    bytes += originalLength;
  }
  return tasks;
}
