import {
  asError,
  type Clock,
  CodedError,
  isCode,
  type Logger,
  type RandomBytes,
  unixSeconds,
  withRetry,
} from '../../base/index.ts';
import type { BlobStorage, PutOptions } from '../../blob/index.ts';
import { type Compressor, contentIv, decompressContent } from '../../codec/index.ts';
import { CommittedIndex, type EntryRange } from '../index/committed-index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { memorySource, IndexBody } from '../index/index-body.ts';
import { encodeIndex, sortEntries } from '../index/index-writer.ts';
import { type ContentId, type ContentPrefix, hashOf } from './content-id.ts';
import type { IndexStore } from './index-store.ts';
import { MetadataBlocks } from './metadata-blocks.ts';
import type { PackBuffers } from './pack-buffers.ts';
import { type BlobCodec, forEachIndexBlob } from './sealed-blob.ts';
import { WriteSession } from './write-session.ts';

/** Kopia refreshes loaded indexes at most this often while it runs (repo/content/committed_read_manager.go). */
const REFRESH_AFTER_NS = 15n * 60n * 1_000_000_000n;
/** Index blobs that went away while being read: a compaction raced. Kopia's number of tries. */
const LOAD_ATTEMPTS_MAX = 10;

export interface ContentManagerOptions {
  storage: BlobStorage;
  codec: BlobCodec;
  indexStore: IndexStore;
  clock: Clock;
  random: RandomBytes;
  logger: Logger;
  client: { username: string; hostname: string };
  indexVersion: number;
  formatVersion: number;
  maxPackBytes: number;
  /** What precedes the preamble of each pack; empty in repositories whose password can change. */
  replica: Uint8Array;
  /** For packs and index blobs: object lock. */
  putOptions: PutOptions;
  packBuffers: PackBuffers;
  /** Packs of file data that are filled at once. */
  dataLanes: number;
  /** Above it, merged indexes go to scratch files. */
  indexMemoryBytes: number;
}

/** Contents by id: look-up, read, write. Packs are durable before the index that names them. */
export class ContentManager {
  readonly options: ContentManagerOptions;
  #committed: CommittedIndex;
  #loadedAtNs = 0n;
  /** The session that takes writes, and those whose flush is under way. */
  #session: WriteSession;
  readonly #flushing = new Set<WriteSession>();
  readonly #blocks: MetadataBlocks;
  #flushQueue: Promise<void> = Promise.resolve();
  /** After a failed flush contents that others refer to may be missing: nothing may be written any more. */
  #failure: unknown;

  private constructor(options: ContentManagerOptions) {
    this.options = options;
    this.#committed = new CommittedIndex(options.indexMemoryBytes, 0);
    this.#session = new WriteSession(options);
    this.#blocks = new MetadataBlocks(options.storage);
  }

  /** Loads the index. Throws `DAMAGED_BLOB` and what the storage throws. */
  static async open(options: ContentManagerOptions): Promise<ContentManager> {
    const manager = new ContentManager(options);
    await manager.refresh();
    return manager;
  }

  /** Reads the index blobs anew: what others have written since. */
  async refresh(): Promise<void> {
    const { storage, codec, indexStore, clock } = this.options;
    const load = async (): Promise<void> => {
      const { blobs, watermarkSeconds } = await indexStore.listActive();
      const loaded = new CommittedIndex(this.options.indexMemoryBytes, watermarkSeconds);
      try {
        await forEachIndexBlob(storage, codec, blobs, (body) => {
          loaded.add(body);
        });
        loaded.settle();
        this.#committed.close();
        this.#committed = loaded;
      } catch (cause) {
        loaded.close();
        if (!isCode(cause, 'BLOB_NOT_FOUND')) throw cause;
        const text = `index ${cause.message}`;
        throw new CodedError('INDEX_CHANGING', text, { cause, retry: 'backoff' });
      }
    };
    await withRetry(load, {
      budgetOf: () => ({ attemptsMax: LOAD_ATTEMPTS_MAX, delayMsMax: 5000 }),
      firstDelayMs: 100,
      onRetry: (error) => {
        if (!isCode(error, 'INDEX_CHANGING')) throw error;
      },
    });
    this.#loadedAtNs = clock.nowNs();
  }

  async refreshIfOld(): Promise<void> {
    if (this.options.clock.nowNs() - this.#loadedAtNs > REFRESH_AFTER_NS) await this.refresh();
  }

  /** The entry of a content, written here or by others; deleted ones too. Synchronous. */
  find(id: ContentId): IndexEntry | undefined {
    return this.#findPending(id) ?? this.#committed.find(id);
  }

  #findPending(id: ContentId): IndexEntry | undefined {
    const pending = this.#session.find(id);
    if (pending) return pending;
    for (const session of this.#flushing) {
      const entry = session.find(id);
      if (entry) return entry;
    }
    return undefined;
  }

  /** Whether writing this content would store nothing. */
  has(id: ContentId): boolean {
    const entry = this.find(id);
    return entry !== undefined && !entry.deleted;
  }

  /** {@link has} for many, of what an index names already; `keys` as in {@link CommittedIndex.hasAll}. */
  hasAllCommitted(keys: Uint8Array, keyBytes: number): boolean {
    return this.#committed.hasAll(keys, keyBytes);
  }

  /** Committed entries in key order, deleted ones included. Flush first to see what was written here. */
  entries(range: EntryRange = {}): Iterable<IndexEntry> {
    return this.#committed.entries(range);
  }

  get watermarkSeconds(): number {
    return this.#committed.watermarkSeconds;
  }

  /** Throws `CONTENT_NOT_FOUND`, `DAMAGED_BLOB`, `UNSUPPORTED_CONTENT`. */
  async getContent(
    id: ContentId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<Uint8Array> {
    const entry = this.findOrThrow(id);
    const packed = await this.getPacked(entry, options);
    try {
      return this.openPacked(entry, packed);
    } catch (error) {
      if (!isCode(error, 'DAMAGED_BLOB')) throw error;
      return this.openPacked(entry, await this.getPacked(entry, { ...options, fresh: true }));
    }
  }

  /**
   * The bytes themselves when they can be opened, else what the storage says when asked once more: they may
   * have changed on their way, or in a cache. Throws `DAMAGED_BLOB`.
   */
  async soundPacked(entry: IndexEntry, packed: Uint8Array): Promise<Uint8Array> {
    try {
      this.openPacked(entry, packed);
      return packed;
    } catch (error) {
      if (!isCode(error, 'DAMAGED_BLOB')) throw error;
      const again = await this.getPacked(entry, { fresh: true });
      this.openPacked(entry, again);
      return again;
    }
  }

  findOrThrow(id: ContentId): IndexEntry {
    const entry = this.find(id);
    if (entry) return entry;
    throw new CodedError('CONTENT_NOT_FOUND', `content ${id} is not in the repository`, {
      facts: { contentId: id },
    });
  }

  /** The bytes of a content as they lie in its pack. */
  async getPacked(
    entry: IndexEntry,
    options: { signal?: AbortSignal | undefined; fresh?: boolean } = {},
  ): Promise<Uint8Array> {
    if (entry.encryptionKeyId !== 0) {
      const text = `content ${entry.contentId} is encrypted with an unknown key`;
      throw new CodedError('UNSUPPORTED_CONTENT', text);
    }
    for (const session of [this.#session, ...this.#flushing]) {
      const bytes = session.packedBytes(entry);
      if (bytes) return bytes;
    }
    try {
      return await this.#blocks.read(entry, options);
    } catch (cause) {
      if (isCode(cause, 'BLOB_NOT_FOUND'))
        throw damagedContent(entry, 'the blob is missing', cause);
      if (isCode(cause, 'INVALID_RANGE'))
        throw damagedContent(entry, 'the blob is cut short', cause);
      throw cause;
    }
  }

  /** Decrypts and decompresses; throws `DAMAGED_BLOB`. */
  openPacked(entry: IndexEntry, packed: Uint8Array): Uint8Array {
    const { encryptor } = this.options.codec;
    let plaintext: Uint8Array;
    try {
      plaintext = encryptor.open(packed, contentIv(hashOf(entry.contentId)));
      if (entry.compressionHeaderId !== 0) {
        plaintext = decompressContent(plaintext, entry.compressionHeaderId, entry.originalLength);
      }
    } catch (cause) {
      if (isCode(cause, 'DECRYPT_FAILED', 'BAD_COMPRESSION')) {
        throw damagedContent(entry, cause.message, cause);
      }
      throw cause;
    }
    if (plaintext.length !== entry.originalLength) {
      throw damagedContent(entry, `it has ${plaintext.length} bytes, not ${entry.originalLength}`);
    }
    return plaintext;
  }

  /** Writes one content from this thread; nothing is stored when it is there already. */
  write(
    data: Uint8Array,
    options: { prefix: ContentPrefix; compressor?: Compressor | undefined },
  ): Promise<{ contentId: ContentId; isNew: boolean }> {
    return this.#session.write(data, options.prefix, options.compressor, this);
  }

  /** The session that takes writes now. Hold on to it only between two awaits. */
  get session(): WriteSession {
    return this.#session;
  }

  /** Timestamp for a new entry: now, and later than what it replaces. */
  timestampAfter(previous: IndexEntry | undefined): number {
    const now = unixSeconds(this.options.clock.nowNs());
    return previous ? Math.max(now, previous.timestampSeconds + 1) : now;
  }

  /** Marks a content deleted, or brings it back, in place. Throws `CONTENT_NOT_FOUND`. */
  setDeleted(id: ContentId, deleted: boolean): void {
    const entry = this.findOrThrow(id);
    const timestampSeconds = this.timestampAfter(entry);
    this.#session.addEntry({ ...entry, deleted, timestampSeconds });
  }

  /**
   * Makes everything durable that was written before the call: packs, then index blobs, then the
   * session marker goes. Writes may go on meanwhile; they belong to the next session.
   */
  flush(): Promise<void> {
    if (this.#failure !== undefined) return Promise.reject(asError(this.#failure));
    const session = this.#session;
    if (session.isEmpty) return this.#flushQueue;
    this.#session = new WriteSession(this.options);
    this.#flushing.add(session);
    // Packs are put at once; only the index blobs keep the order of the flushes.
    const finished = session.finish();
    finished.catch(() => undefined);
    const flushed = this.#flushQueue.then(async () => {
      await finished;
      // What a checkpoint has named meanwhile is not named again.
      await this.#commit(session, session.entries());
    });
    this.#flushQueue = flushed;
    flushed.catch((error: unknown) => (this.#failure ??= error));
    return flushed;
  }

  /**
   * Makes the packs count that are put already, without closing those that are being filled: nothing
   * gets shorter by it, and what lies in them is all that a kill can lose.
   */
  checkpoint(): Promise<void> {
    if (this.#failure !== undefined) return Promise.reject(asError(this.#failure));
    const session = this.#session;
    const entries = session.takeDurable();
    if (entries.length === 0) return this.#flushQueue;
    const written = this.#flushQueue.then(async () => {
      await this.#writeIndex(session, entries);
      session.forget(entries);
    });
    this.#flushQueue = written;
    written.catch((error: unknown) => (this.#failure ??= error));
    return written;
  }

  async #writeIndex(session: WriteSession, entries: readonly IndexEntry[]): Promise<void> {
    const { indexStore, indexVersion } = this.options;
    const body = encodeIndex(indexVersion, sortEntries(entries));
    await indexStore.write([body], session.id);
    this.#committed.add(new IndexBody(memorySource(body)));
    this.#committed.settle();
  }

  async #commit(session: WriteSession, entries: readonly IndexEntry[]): Promise<void> {
    if (entries.length > 0) await this.#writeIndex(session, entries);
    this.#flushing.delete(session);
    await session.end();
  }

  close(): void {
    this.#committed.close();
  }
}

function damagedContent(entry: IndexEntry, what: string, cause?: unknown): CodedError {
  const { packBlobId, contentId } = entry;
  const text = `blob ${packBlobId} is damaged: content ${contentId}: ${what}`;
  return new CodedError('DAMAGED_BLOB', text, { cause, facts: { blobId: packBlobId, contentId } });
}
