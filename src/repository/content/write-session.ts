import { asError, type Nanoseconds } from '../../base/index.ts';
import { blobId } from '../../blob/index.ts';
import type { SealedItem } from '../../volume-files/index.ts';
import { comparePrecedence, type IndexEntry } from '../index/entry.ts';
import { type ContentId, prefixOf } from '../index/content-id.ts';
import type { ContentManagerOptions } from './content-options.ts';
import type { OpenPacks, PackKind, PackOwner } from './open-packs.ts';
import { Pack } from './pack.ts';
import { newSessionId, type SessionId } from './session.ts';
import { SessionMarker, type UploadSource } from './session-marker.ts';

/** A content to be sealed. */
export interface NewContent {
  readonly contentId: ContentId;
  readonly originalLength: number;
  readonly timestampSeconds: number;
  /** The content is marked as deleted and being rewritten. */
  readonly deleted?: boolean;
}

/** Seals contents into a pack's buffer at this address. */
export type SealInto = (address: Uint8Array) => Promise<SealedItem[]> | SealedItem[];

/** The writes between two flushes: packs, index entries and marker blob. */
export class WriteSession implements PackOwner {
  readonly id: SessionId;
  readonly #options: ContentManagerOptions;
  readonly #packs: OpenPacks;
  readonly #marker: SessionMarker;
  readonly #entries = new Map<ContentId, IndexEntry>();
  /** Deleted manifest contents, always few. */
  readonly #marks = new Map<ContentId, IndexEntry>();
  /** Packs whose bytes are still in memory and can be read. */
  readonly #inMemory = new Map<string, Pack>();
  readonly #appends = new Set<Promise<unknown>>();
  /** Appends of each kind that wait for a pack. */
  readonly #unplaced: Record<PackKind, number> = { p: 0, q: 0 };
  readonly #puts = new Set<Promise<void>>();
  /** Set by {@link finish}: only waiting appends still run. */
  #isFinishing = false;
  #failure: unknown;
  /** Entries of durable packs that no index names yet, and the bytes of those packs. */
  #durable: IndexEntry[] = [];
  #durableBytes = 0;

  constructor(options: ContentManagerOptions, packs: OpenPacks, uploadSource?: UploadSource) {
    this.#options = options;
    this.#packs = packs;
    this.id = newSessionId(options.clock, options.random);
    this.#marker = new SessionMarker(options, this.id);
    this.#marker.uploadSource = uploadSource;
  }

  /** Ignored if the marker exists already. */
  set uploadSource(source: UploadSource) {
    this.#marker.uploadSource = source;
  }

  get isEmpty(): boolean {
    return this.#entries.size === 0 && this.#appends.size === 0 && !this.#marker.isMade;
  }

  /** Bytes of durable packs that no index names yet. */
  get durableBytes(): number {
    return this.#durableBytes;
  }

  /** Entries of durable packs that no index names yet. */
  get durableEntries(): number {
    return this.#durable.length;
  }

  /** Takes the entries of durable packs. Call `forget` once an index names them. */
  takeDurable(): IndexEntry[] {
    const taken = this.#durable;
    this.#durable = [];
    this.#durableBytes = 0;
    return taken;
  }

  forget(entries: readonly IndexEntry[]): void {
    for (const entry of entries) {
      // A content marked as deleted meanwhile has another entry, which stays.
      if (this.#entries.get(entry.contentId) === entry) this.#entries.delete(entry.contentId);
    }
  }

  find(id: ContentId): IndexEntry | undefined {
    return this.#entries.get(id);
  }

  /** Bytes of a content whose pack is in memory. */
  packedBytes(entry: IndexEntry): Uint8Array | undefined {
    const pack = this.#inMemory.get(entry.packBlobId);
    return (
      pack &&
      Uint8Array.from(pack.buffer.subarray(entry.packOffset, entry.packOffset + entry.packedLength))
    );
  }

  /** Adds an entry for a content in another pack: a deletion or an undeletion. */
  addEntry(entry: IndexEntry): void {
    this.#entries.set(entry.contentId, entry);
    if (entry.deleted && prefixOf(entry.contentId) === 'm') this.#marks.set(entry.contentId, entry);
  }

  /**
   * Appends contents to one pack. `seal` writes at most `roomBytes`. Entries are found once the
   * promise resolves. Several appends can run at once, each with its own pack.
   */
  append(
    kind: PackKind,
    contents: readonly NewContent[],
    roomBytes: number,
    seal: SealInto,
  ): Promise<void> {
    const appended = this.#append(kind, contents, roomBytes, seal);
    this.#appends.add(appended);
    const settled = (): void => void this.#appends.delete(appended);
    appended.then(settled, settled);
    return appended;
  }

  async #append(
    kind: PackKind,
    contents: readonly NewContent[],
    roomBytes: number,
    seal: SealInto,
  ): Promise<void> {
    let isPlaced = false;
    const placed = (): void => {
      if (!isPlaced) this.#unplaced[kind]--;
      isPlaced = true;
    };
    this.#unplaced[kind]++;
    try {
      await this.#packs.append(this, kind, roomBytes, async (pack) => {
        placed();
        const sealed = await seal(pack.buffer.subarray(pack.length, pack.length + roomBytes));
        contents.forEach((content, i) => {
          this.#book(pack, content, sealed[i] as SealedItem);
        });
      });
    } finally {
      placed();
    }
  }

  #book(pack: Pack, content: NewContent, sealed: SealedItem): void {
    const entry: IndexEntry = {
      contentId: content.contentId,
      originalLength: content.originalLength,
      timestampSeconds: content.timestampSeconds,
      packBlobId: pack.blobId,
      packOffset: pack.advance(sealed.packedLength),
      packedLength: sealed.packedLength,
      compressionHeaderId: sealed.compressionHeaderId,
      deleted: content.deleted ?? false,
      formatVersion: this.#options.formatVersion,
      encryptionKeyId: 0,
    };
    pack.entries.push(entry);
    // Two appends may store the same content in two packs. Keep the entry that the packs' local
    // indexes call newer.
    const known = this.#entries.get(entry.contentId);
    if (!known || comparePrecedence(entry, known) > 0) this.#entries.set(entry.contentId, entry);
  }

  newPack(kind: PackKind, buffer: Uint8Array): Pack {
    const { random, replica } = this.#options;
    const name = Buffer.from(random(16)).toString('hex');
    const pack = new Pack(blobId(`${kind}${name}-${this.id}`), buffer, replica, random);
    this.#inMemory.set(pack.blobId, pack);
    return pack;
  }

  wants(kind: PackKind): boolean {
    return !this.#isFinishing || this.#unplaced[kind] > 0;
  }

  put(pack: Pack): Promise<void> {
    const put = this.#put(pack);
    this.#puts.add(put);
    const settled = (): void => void this.#puts.delete(put);
    put.then(settled, (error: unknown) => {
      this.#failure ??= error;
      settled();
    });
    return put;
  }

  async #put(pack: Pack): Promise<void> {
    const { storage, codec, indexVersion, random, putOptions } = this.#options;
    try {
      if (pack.entries.length === 0) return;
      await this.#marker.put();
      pack.marks = this.#takeMarks(pack);
      const pieces = pack.finish({ ...codec, indexVersion, random });
      await storage.putBlob(pack.blobId, pieces, putOptions);
      // Not with a spread: a pack of tiny files has more entries than a call takes parameters.
      for (const entry of pack.entries) this.#durable.push(entry);
      this.#durableBytes += pack.length;
    } finally {
      this.#inMemory.delete(pack.blobId);
    }
  }

  /**
   * Deletions that no local index names yet. Kopia records them too. Without them, a rebuilt index
   * would bring back merged snapshot lists.
   */
  #takeMarks(pack: Pack): IndexEntry[] {
    const own = new Set(pack.entries.map(({ contentId }) => contentId));
    const marks = [...this.#marks.values()].filter(({ contentId }) => !own.has(contentId));
    this.#marks.clear();
    return marks;
  }

  drop(pack: Pack, failure: unknown): void {
    this.#inMemory.delete(pack.blobId);
    if (pack.entries.length > 0) this.#failure ??= failure;
  }

  /** The storage's current time. Throws storage errors. */
  storageTime(): Promise<Nanoseconds> {
    return this.#marker.storageTime();
  }

  /** Number of entries that no index names yet. */
  get entryCount(): number {
    return this.#entries.size;
  }

  /** Entries that no index names yet. */
  entries(): IndexEntry[] {
    return [...this.#entries.values()];
  }

  /** Puts the open packs. Later contents get new packs. */
  async closePacks(): Promise<void> {
    for (const pack of this.#inMemory.values()) pack.close();
    this.#packs.closeIdle(this);
    // A pack in use is put after its append.
    const appends = [...this.#appends];
    await Promise.allSettled(appends);
    await Promise.allSettled(this.#puts);
  }

  /** Puts all packs. Do not append after this call. Throws the failure of a put. */
  async finish(): Promise<void> {
    this.#isFinishing = true;
    this.#packs.closeIdle(this);
    while (this.#appends.size > 0) await Promise.allSettled(this.#appends);
    this.#packs.closeIdle(this);
    while (this.#puts.size > 0) await Promise.allSettled(this.#puts);
    if (this.#failure !== undefined) throw asError(this.#failure);
  }

  /** Deletes the marker. Call it when the index names every pack. */
  end(): Promise<void> {
    return this.#marker.delete();
  }
}
