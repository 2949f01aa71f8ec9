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

/**
 * Flushes at once. Our choice: while one waits for the storage the next one collects what it will
 * flush, so that flushes in a row pile up nothing.
 */
const FLUSHES_MAX = 1;

/**
 * Entries that wait for an index, some 300 bytes each, while one is being written that does not
 * come to its end. Our choice: twice what an upload lets wait before it asks for the next one
 * (uploader/checkpoint.ts).
 */
const UNNAMED_ENTRIES_MAX = 1 << 18;

interface ReadPackedOptions {
  readonly signal?: AbortSignal | undefined;
  readonly fresh?: boolean;
}

/** Contents by id: look-up, read, write. Packs are durable before the index that names them. */
export class ContentManager {
  /**
   * What is not to be relied on, though the index names it. Empty unless somebody has told of
   * damage.
   */
  readonly damaged = new DamagedContents();
  readonly #options: ContentManagerOptions;
  readonly #loaded: LoadedIndex;
  /** The session that takes writes, and those whose flush is under way. */
  #session: WriteSession;
  readonly #flushing = new Set<WriteSession>();
  #uploadSource: UploadSource | undefined;
  readonly #blocks: MetadataBlocks;
  /**
   * After a failed put or flush contents that others refer to may be missing: it takes nothing any
   * more.
   */
  readonly #packs: OpenPacks;
  readonly #writer: ContentWriter;
  #flushQueue: Promise<void> = Promise.resolve();
  /** Flushes and checkpoints under way, all of them in {@link #flushQueue}. */
  #naming = 0;
  /** The flush that waits for its turn; all that is written until then is part of it. */
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

  /** Loads the index. Throws `DAMAGED_BLOB` and what the storage throws. */
  static async open(options: ContentManagerOptions): Promise<ContentManager> {
    const manager = new ContentManager(options);
    await manager.refresh();
    return manager;
  }

  /** Session markers name the source, so that the upload after a kill finds the packs. */
  set uploadSource(source: UploadSource) {
    this.#uploadSource = source;
    this.#session.uploadSource = source;
  }

  /**
   * The time of the storage's clock: that of a blob which is put now. Throws what the storage
   * throws.
   */
  storageTime(): Promise<Nanoseconds> {
    return this.#session.storageTime();
  }

  /** Reads the index blobs anew: what others have written since. */
  refresh(options?: SignalOptions): Promise<void> {
    return this.#loaded.refresh(options);
  }

  /**
   * Lists the index blobs anew, and reads them when there are others. Returns whether there were.
   */
  refreshIfChanged(): Promise<boolean> {
    return this.#loaded.refreshIfChanged();
  }

  refreshIfOld(options?: SignalOptions): Promise<void> {
    return this.#loaded.refreshIfOld(options);
  }

  /** `DAMAGED_BLOB` for each unreadable index blob in force. Contents may be missing or moved. */
  get unreadableIndexes(): readonly CodedError[] {
    return this.#loaded.unreadable;
  }

  /**
   * Maintenance needs the whole index. Throws `INDEX_UNREADABLE` as {@link LoadedIndex.require}.
   */
  requireIndex(need: IndexNeed): void {
    this.#loaded.require(need);
  }

  /** The entry of a content, written here or by others; deleted ones too. Synchronous. */
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

  /** Whether writing this content would store nothing. */
  has(id: ContentId): boolean {
    return this.isStored(this.find(id));
  }

  /**
   * Whether an entry that was found since the last await lets its content count as stored: neither
   * deleted nor damaged.
   */
  isStored(entry: IndexEntry | undefined): boolean {
    return entry !== undefined && !entry.deleted && !this.damaged.has(entry);
  }

  /**
   * {@link has} for many, of what an index names already; `keys` as in
   * {@link CommittedIndex.hasAll}. Where contents are damaged it is false for indexes of objects as
   * well: what they lead to would have to be looked at.
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

  /**
   * Committed entries in key order, deleted ones included. Flush first to see what was written
   * here.
   */
  entries(range: EntryRange = {}): Iterable<IndexEntry> {
    return this.#loaded.index.entries(range);
  }

  /**
   * All of {@link entries}, for those who need little of each: a row is valid until the next one is
   * taken.
   */
  rows(): Iterable<IndexRow> {
    return this.#loaded.index.rows();
  }

  /**
   * Marks on the committed contents as they are now, which the caller closes; and whether the index
   * has been read anew since then.
   */
  openMarks(): { readonly marks: IndexMarks; readonly isCurrent: () => boolean } {
    const { index } = this.#loaded;
    const marks = index.openMarks(1 + this.#options.codec.hasher.hashBytes);
    return { marks, isCurrent: () => this.#loaded.index === index };
  }

  /** Version 1 of the index knows no compressed contents. */
  get storesCompressed(): boolean {
    return this.#options.indexVersion >= 2;
  }

  get maxPackBytes(): number {
    return this.#options.maxPackBytes;
  }

  /** Memory of a pack's size each, shared by those who fill packs and those who read from them. */
  get packBuffers(): PackBuffers {
    return this.#options.packBuffers;
  }

  get watermarkSeconds(): number {
    return this.#loaded.index.watermarkSeconds;
  }

  /**
   * Rows of the committed index, hidden ones included; up to a few times the number of contents.
   */
  get rowCount(): number {
    return this.#loaded.index.rowCount;
  }

  /** What the scratch directory must have room for when the index is read anew. */
  get scratchBytesMax(): number {
    return this.#loaded.index.scratchBytesMax;
  }

  /** The same while marks are held. */
  get scratchBytesBesideMarksMax(): number {
    return this.#loaded.index.scratchBytesBesideMarksMax;
  }

  get contentCount(): number {
    return this.#loaded.index.contentCount;
  }

  /** What the committed index says about a content, even when a watermark hides it. */
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
      // A blob that is missing or too short is asked for again by nobody.
      if (!isCode(error, 'DAMAGED_BLOB') || isCode(error.cause, 'BLOB_NOT_FOUND', 'INVALID_RANGE'))
        throw error;
      return await this.#withPacked(entry, { ...options, fresh: true }, open);
    }
  }

  /**
   * The bytes themselves when they can be opened, else what the storage says when asked once more:
   * they may have changed on their way, or in a cache. Throws `DAMAGED_BLOB`.
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
   * Where the content lies of an entry whose pack is gone: maintenance moves contents and deletes
   * their old packs later, and a long restore or verification has its index from before. Undefined
   * when no index says another place.
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

  /** The bytes of a content as they lie in its pack. */
  getPacked(entry: IndexEntry, options: ReadPackedOptions = {}): Promise<Uint8Array> {
    return this.#withPacked(entry, options, (packed) => new Uint8Array(packed));
  }

  /** Calls back with them: they are good until it returns. */
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
      // What was written here and could not be put is missing for that reason.
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
   * What to wait for before something is written: packs may be put fast while the storage takes no
   * index, and the entries that no index names are held in memory. Ask before {@link session},
   * which a flush waits for.
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
    // Whoever asked for the flush meets its failure, and so do those who write after it.
    while (!this.#hasRoom()) await this.#flushQueue.catch(() => undefined);
  }

  /** Writes one content from this thread; nothing is stored when it is there already. */
  async write(
    data: Uint8Array,
    options: WriteContentOptions,
  ): Promise<{ contentId: ContentId; isNew: boolean }> {
    const room = this.whenRoom();
    if (room) await room;
    return this.#writer.write(data, options);
  }

  /**
   * Throws the failure after which nothing can be written any more. For those who would otherwise
   * go on reading for hours what can no longer be stored.
   */
  assertWritable(): void {
    if (this.#packs.failure) throw this.#packs.failure;
  }

  /** The session that takes writes now. Hold on to it only between two awaits. */
  get session(): WriteSession {
    return this.#session;
  }

  /**
   * Timestamp for a new entry: now, and later than what it replaces. That may be a deletion which
   * the watermark hides: to a clock that is behind it would stay the newer entry, and hide the new
   * one too.
   */
  timestampAfter(previous: IndexEntry | undefined): number {
    const now = Math.max(unixSeconds(this.#options.clock.nowNs()), this.watermarkSeconds + 1);
    return previous ? Math.max(now, previous.timestampSeconds + 1) : now;
  }

  /** Marks a content deleted, or brings it back, in place. Throws `CONTENT_NOT_FOUND`. */
  setDeleted(id: ContentId, deleted: boolean): void {
    this.setEntryDeleted(this.findOrThrow(id), deleted);
  }

  /** The same for an entry that was found since the last await. */
  setEntryDeleted(entry: IndexEntry, deleted: boolean): void {
    const timestampSeconds = this.timestampAfter(entry);
    this.#session.addEntry({ ...entry, deleted, timestampSeconds });
  }

  /**
   * Makes everything durable that was written before the call: packs, then index blobs, then the
   * session marker goes. Writes may go on meanwhile; they belong to the next session.
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
    // Whoever called meets the failure.
    this.#nextFlush.catch(() => undefined);
    return this.#nextFlush;
  }

  #startFlush(): Promise<void> {
    const session = this.#session;
    this.#session = new WriteSession(this.#options, this.#packs, this.#uploadSource);
    this.#flushing.add(session);
    // Packs are put at once; only the index blobs keep the order of flushes and checkpoints.
    const finished = session.finish();
    finished.catch(() => undefined);
    const flushed = this.#flushQueue.then(async () => {
      await finished;
      // What a checkpoint has named meanwhile is not named again.
      await this.#commit(session, session.entries());
    });
    this.#enqueue(flushed);
    return flushed;
  }

  /**
   * Puts the packs that are being filled, without an index blob. If this process is killed, the
   * next upload finds them by the session marker. A failed put fails every later write.
   */
  async closePacks(): Promise<void> {
    await this.#session.closePacks();
    this.assertWritable();
  }

  /**
   * Makes the packs count that are put already, without closing those that are being filled:
   * nothing gets shorter by it, and what lies in them is all that a kill can lose.
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
