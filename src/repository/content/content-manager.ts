import { CodedError, isCode, type Nanoseconds, unixSeconds } from '../../base/index.ts';
import { contentIv, decompressContent } from '../../codec/index.ts';
import type { EntryRange, IndexRow } from '../index/committed-index.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { IndexMarks } from '../index/index-marks.ts';
import { encodeIndex, sortEntries } from '../index/index-writer.ts';
import { type ContentId, contentIdOfKey, hashOf } from '../index/content-id.ts';
import type { ContentManagerOptions } from './content-options.ts';
import { ContentWriter, type WriteContentOptions } from './content-writer.ts';
import { DamagedContents } from './damaged-contents.ts';
import type { SignalOptions } from './index-store.ts';
import { type IndexNeed, LoadedIndex } from './loaded-index.ts';
import { MetadataBlocks } from './metadata-blocks.ts';
import { OpenPacks } from './open-packs.ts';
import type { PackBuffers } from './pack-buffers.ts';
import type { UploadSource } from './session-marker.ts';
import { WriteSession } from './write-session.ts';

/** Flushes running at once. Our choice: later writes join the next flush. */
const FLUSHES_MAX = 1;

/**
 * Entries not yet in an index, about 300 bytes each, while an index is being written. Our choice:
 * twice the count that makes an upload request the next index (uploader/upload/checkpoint.ts).
 */
const UNNAMED_ENTRIES_MAX = 1 << 18;

interface ReadPackedOptions {
  readonly signal?: AbortSignal | undefined;
  readonly fresh?: boolean;
}

/** Finds, reads and writes contents by ID. Packs become durable before their index. */
export class ContentManager {
  /** Contents in the index that are missing or damaged. Empty until damage is reported. */
  readonly damaged = new DamagedContents();
  readonly #options: ContentManagerOptions;
  readonly #loaded: LoadedIndex;
  /** The session that takes writes, and the sessions that are being flushed. */
  #session: WriteSession;
  readonly #flushing = new Set<WriteSession>();
  #uploadSource: UploadSource | undefined;
  readonly #blocks: MetadataBlocks;
  /** Refuses writes after a failed put or flush, because referenced contents may be missing. */
  readonly #packs: OpenPacks;
  readonly #writer: ContentWriter;
  #flushQueue: Promise<void> = Promise.resolve();
  /** Running flushes and checkpoints, all of them in {@link #flushQueue}. */
  #naming = 0;
  /** The flush that waits for its turn. Everything written until it starts is part of it. */
  #nextFlush: Promise<void> | undefined;

  private constructor(options: ContentManagerOptions) {
    this.#options = options;
    this.#loaded = new LoadedIndex(options);
    const { packBuffers: buffers, dataLanes, maxPackBytes } = options;
    this.#packs = new OpenPacks({ buffers, dataLanes, maxPackBytes });
    this.#session = new WriteSession(options, this.#packs);
    this.#blocks = new MetadataBlocks(options.storage);
    this.#writer = new ContentWriter(options, this);
  }

  /** Loads the index. Throws `DAMAGED_BLOB` and storage errors. */
  static async open(options: ContentManagerOptions): Promise<ContentManager> {
    const manager = new ContentManager(options);
    await manager.refresh();
    return manager;
  }

  /** Session markers name the source. After a kill, the next upload finds the packs by it. */
  set uploadSource(source: UploadSource) {
    this.#uploadSource = source;
    this.#session.uploadSource = source;
  }

  /** The current time of the storage, taken from a blob put now. Throws storage errors. */
  storageTime(): Promise<Nanoseconds> {
    return this.#session.storageTime();
  }

  /** Reads the index blobs again, with the writes of other clients. */
  refresh(options?: SignalOptions): Promise<void> {
    return this.#loaded.refresh(options);
  }

  /** Lists the index blobs, and reads them if they changed. Returns whether they changed. */
  refreshIfChanged(): Promise<boolean> {
    return this.#loaded.refreshIfChanged();
  }

  refreshIfOld(options?: SignalOptions): Promise<void> {
    return this.#loaded.refreshIfOld(options);
  }

  /** `DAMAGED_BLOB` for each unreadable index blob. Contents may be missing or have moved. */
  get unreadableIndexes(): readonly CodedError[] {
    return this.#loaded.unreadable;
  }

  /** For maintenance. Throws `INDEX_UNREADABLE` like {@link LoadedIndex.require}. */
  requireIndex(need: IndexNeed): void {
    this.#loaded.require(need);
  }

  /** The entry of any client's content, including deleted contents. Synchronous. */
  find(id: ContentId): IndexEntry | undefined {
    return this.#findPending(id) ?? this.#loaded.index.find(id);
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

  /** Whether the content is already stored, so that writing it would store nothing. */
  has(id: ContentId): boolean {
    return this.isStored(this.find(id));
  }

  /** Whether the content is neither deleted nor damaged. Find the entry after the last await. */
  isStored(entry: IndexEntry | undefined): boolean {
    return entry !== undefined && !entry.deleted && !this.damaged.has(entry);
  }

  /**
   * {@link has} for many contents of the committed index. `keys` as in
   * {@link CommittedIndex.hasAll}. If the repository has damage, this returns false for index
   * objects (`x`), because their parts are not checked.
   */
  hasAllCommitted(keys: Uint8Array, keyBytes: number): boolean {
    if (!this.#loaded.index.hasAll(keys, keyBytes)) return false;
    if (this.damaged.isEmpty) return true;
    for (let at = 0; at < keys.length; at += keyBytes) {
      const id = contentIdOfKey(keys.subarray(at, at + keyBytes));
      if (id.startsWith('x') || !this.has(id)) return false;
    }
    return true;
  }

  /** Committed entries in key order, including deleted contents. Without unflushed writes. */
  entries(range: EntryRange = {}): Iterable<IndexEntry> {
    return this.#loaded.index.entries(range);
  }

  /** {@link entries} for callers that need few fields. A row is valid until the next. */
  rows(): Iterable<IndexRow> {
    return this.#loaded.index.rows();
  }

  /**
   * Marks on the committed contents of this moment, and whether the index is still the same. The
   * caller closes the marks.
   */
  openMarks(): { readonly marks: IndexMarks; readonly isCurrent: () => boolean } {
    const { index } = this.#loaded;
    const marks = index.openMarks(1 + this.#options.codec.hasher.hashBytes);
    return { marks, isCurrent: () => this.#loaded.index === index };
  }

  /** Index version 1 cannot store compressed contents. */
  get storesCompressed(): boolean {
    return this.#options.indexVersion >= 2;
  }

  get maxPackBytes(): number {
    return this.#options.maxPackBytes;
  }

  /** Pack-sized buffers, shared by writers and readers of packs. */
  get packBuffers(): PackBuffers {
    return this.#options.packBuffers;
  }

  get watermarkSeconds(): number {
    return this.#loaded.index.watermarkSeconds;
  }

  /** Rows of the committed index, also hidden rows. Up to a few times the contents. */
  get rowCount(): number {
    return this.#loaded.index.rowCount;
  }

  /** Scratch space needed to read the index again. */
  get scratchBytesMax(): number {
    return this.#loaded.index.scratchBytesMax;
  }

  /** Scratch space needed to read the index again while marks are open. */
  get scratchBytesBesideMarksMax(): number {
    return this.#loaded.index.scratchBytesBesideMarksMax;
  }

  get contentCount(): number {
    return this.#loaded.index.contentCount;
  }

  /** The committed entry of a content, even if a watermark hides it. */
  findHidden(id: ContentId): IndexEntry | undefined {
    return this.#loaded.index.findHidden(id);
  }

  /** Throws `CONTENT_NOT_FOUND`, `DAMAGED_BLOB`, `UNSUPPORTED_CONTENT`. */
  async getContent(
    id: ContentId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<Uint8Array> {
    const entry = this.findOrThrow(id);
    try {
      return await this.#readContent(entry, options);
    } catch (error) {
      const moved = isMissingPack(error) ? await this.findMoved(entry) : undefined;
      if (!moved) throw error;
      return this.#readContent(moved, options);
    }
  }

  async #readContent(
    entry: IndexEntry,
    options: { signal?: AbortSignal | undefined },
  ): Promise<Uint8Array> {
    const open = (packed: Uint8Array): Uint8Array => this.openPacked(entry, packed);
    try {
      return await this.#withPacked(entry, options, open);
    } catch (error) {
      // A retry cannot help if the blob is missing or too short.
      if (!isCode(error, 'DAMAGED_BLOB') || isCode(error.cause, 'BLOB_NOT_FOUND', 'INVALID_RANGE'))
        throw error;
      return await this.#withPacked(entry, { ...options, fresh: true }, open);
    }
  }

  /**
   * Returns `packed` if it can be opened. Otherwise reads it again from the storage, because the
   * bytes may have changed in transit or in a cache. Throws `DAMAGED_BLOB`.
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

  /**
   * The new place of a content whose pack is missing, or undefined. Maintenance moves contents and
   * deletes their old packs later. A long restore or verification may use an older index.
   */
  async findMoved({ contentId, packBlobId }: IndexEntry): Promise<IndexEntry | undefined> {
    const find = (): IndexEntry | undefined => {
      const entry = this.find(contentId);
      return entry?.packBlobId === packBlobId ? undefined : entry;
    };
    const known = find();
    if (known) return known;
    await this.#loaded.lookAgain();
    return find();
  }

  findOrThrow(id: ContentId): IndexEntry {
    const entry = this.find(id);
    if (entry) return entry;
    throw new CodedError('CONTENT_NOT_FOUND', `content ${id} is not in the repository`, {
      facts: { contentId: id },
    });
  }

  /** The packed bytes of a content, still encrypted. */
  getPacked(entry: IndexEntry, options: ReadPackedOptions = {}): Promise<Uint8Array> {
    return this.#withPacked(entry, options, (packed) => new Uint8Array(packed));
  }

  /** The bytes passed to `use` are valid until it returns. */
  async #withPacked<T>(
    entry: IndexEntry,
    options: ReadPackedOptions,
    use: (packed: Uint8Array) => T,
  ): Promise<T> {
    if (entry.encryptionKeyId !== 0) {
      const text = `content ${entry.contentId} is encrypted with an unknown key`;
      throw new CodedError('UNSUPPORTED_CONTENT', text);
    }
    for (const session of [this.#session, ...this.#flushing]) {
      const bytes = session.packedBytes(entry);
      if (bytes) return use(bytes);
    }
    try {
      return await this.#blocks.read(entry, options, use);
    } catch (cause) {
      // The pack was written here and its put failed: report that failure.
      if (this.#packs.failure && this.#findPending(entry.contentId)) throw this.#packs.failure;
      if (isCode(cause, 'BLOB_NOT_FOUND'))
        throw damagedContent(entry, 'the blob is missing', cause);
      if (isCode(cause, 'INVALID_RANGE'))
        throw damagedContent(entry, 'the blob is cut short', cause);
      throw cause;
    }
  }

  /** Decrypts and decompresses; throws `DAMAGED_BLOB`. */
  openPacked(entry: IndexEntry, packed: Uint8Array): Uint8Array {
    const { encryptor } = this.#options.codec;
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

  /**
   * Await this before you write. Limits the entries in memory while the storage takes packs but no
   * index. Call it before {@link session}, because a flush waits for the session.
   */
  whenRoom(): Promise<void> | undefined {
    return this.#hasRoom() ? undefined : this.#waitForRoom();
  }

  #hasRoom(): boolean {
    if (this.#naming === 0) return true;
    let count = this.#session.entryCount;
    for (const session of this.#flushing) count += session.entryCount;
    return count < UNNAMED_ENTRIES_MAX;
  }

  async #waitForRoom(): Promise<void> {
    // Callers of flush() and later writers see the failure.
    while (!this.#hasRoom()) await this.#flushQueue.catch(() => undefined);
  }

  /** Writes one content in this thread. Stores nothing if the content exists. */
  async write(
    data: Uint8Array,
    options: WriteContentOptions,
  ): Promise<{ contentId: ContentId; isNew: boolean }> {
    const room = this.whenRoom();
    if (room) await room;
    return this.#writer.write(data, options);
  }

  /** Throws the failure that makes all writes impossible. Call it to stop a long read early. */
  assertWritable(): void {
    if (this.#packs.failure) throw this.#packs.failure;
  }

  /** The session that takes writes. Do not keep it across an await. */
  get session(): WriteSession {
    return this.#session;
  }

  /**
   * Timestamp of a new entry: now, and later than `previous`. A watermark may hide a deletion. If
   * this clock is behind, an older timestamp would lose to that deletion, and both would be hidden.
   */
  timestampAfter(previous: IndexEntry | undefined): number {
    const now = Math.max(unixSeconds(this.#options.clock.nowNs()), this.watermarkSeconds + 1);
    return previous ? Math.max(now, previous.timestampSeconds + 1) : now;
  }

  /** Marks a content as deleted, or undeletes it, in place. Throws `CONTENT_NOT_FOUND`. */
  setDeleted(id: ContentId, deleted: boolean): void {
    this.setEntryDeleted(this.findOrThrow(id), deleted);
  }

  /** {@link setDeleted} for an entry found since the last await. */
  setEntryDeleted(entry: IndexEntry, deleted: boolean): void {
    const timestampSeconds = this.timestampAfter(entry);
    this.#session.addEntry({ ...entry, deleted, timestampSeconds });
  }

  /**
   * Makes all earlier writes durable: first packs, then index blobs, then it deletes the session
   * marker. Writes during a flush belong to the next session.
   */
  flush(): Promise<void> {
    if (this.#packs.failure) return Promise.reject(this.#packs.failure);
    if (this.#nextFlush) return this.#nextFlush;
    if (this.#session.isEmpty) return this.#flushQueue;
    if (this.#flushing.size < FLUSHES_MAX) return this.#startFlush();
    this.#nextFlush = this.#flushQueue.then(() => {
      this.#nextFlush = undefined;
      return this.flush();
    });
    // The caller handles the failure.
    this.#nextFlush.catch(() => undefined);
    return this.#nextFlush;
  }

  #startFlush(): Promise<void> {
    const session = this.#session;
    this.#session = new WriteSession(this.#options, this.#packs, this.#uploadSource);
    this.#flushing.add(session);
    // Packs are put at once. Index blobs keep the order of flushes and checkpoints.
    const finished = session.finish();
    finished.catch(() => undefined);
    const flushed = this.#flushQueue.then(async () => {
      await finished;
      // Leaves out entries that a checkpoint has written meanwhile.
      await this.#commit(session, session.entries());
    });
    this.#enqueue(flushed);
    return flushed;
  }

  /**
   * Puts the open packs without an index blob. If this process is killed, the next upload finds
   * them by the session marker. A failed put fails every later write.
   */
  async closePacks(): Promise<void> {
    await this.#session.closePacks();
    this.assertWritable();
  }

  /**
   * Writes an index for the packs that are already put. Open packs stay open, so no pack gets
   * shorter. A kill can then lose only the open packs.
   */
  checkpoint(): Promise<void> {
    if (this.#packs.failure) return Promise.reject(this.#packs.failure);
    const session = this.#session;
    const entries = session.takeDurable();
    if (entries.length === 0) return this.#flushQueue;
    const written = this.#flushQueue.then(async () => {
      await this.#writeIndex(session, entries);
      session.forget(entries);
    });
    this.#enqueue(written);
    return written;
  }

  #enqueue(naming: Promise<void>): void {
    this.#flushQueue = naming;
    this.#naming++;
    naming.then(
      () => this.#naming--,
      (error: unknown) => {
        this.#naming--;
        this.#packs.fail(error);
      },
    );
  }

  async #writeIndex(session: WriteSession, entries: readonly IndexEntry[]): Promise<void> {
    const { indexStore, indexVersion } = this.#options;
    const body = encodeIndex(indexVersion, sortEntries(entries));
    await indexStore.write([body], session.id);
    this.#loaded.add(body);
  }

  async #commit(session: WriteSession, entries: readonly IndexEntry[]): Promise<void> {
    if (entries.length > 0) await this.#writeIndex(session, entries);
    this.#flushing.delete(session);
    await session.end();
  }

  close(): void {
    this.#loaded.close();
  }
}

const isMissingPack = (error: unknown): boolean =>
  isCode(error, 'DAMAGED_BLOB') && isCode(error.cause, 'BLOB_NOT_FOUND');

function damagedContent(entry: IndexEntry, what: string, cause?: unknown): CodedError {
  const { packBlobId, contentId } = entry;
  const text = `blob ${packBlobId} is damaged: content ${contentId}: ${what}`;
  return new CodedError('DAMAGED_BLOB', text, { cause, facts: { blobId: packBlobId, contentId } });
}
