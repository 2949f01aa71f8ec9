import { asError, type Nanoseconds } from '../../base/index.ts';
import { type BlobId, blobId } from '../../blob/index.ts';
import { type Compressor, compressContent, contentIv } from '../../codec/index.ts';
import type { SealedItem } from '../../volume-files/index.ts';
import { comparePrecedence, type IndexEntry } from '../index/entry.ts';
import { type ContentId, contentIdOf, type ContentPrefix, hashOf } from './content-id.ts';
import type { ContentManagerOptions } from './content-options.ts';
import type { OpenPacks, PackKind, PackOwner } from './open-packs.ts';
import { Pack } from './pack.ts';
import { sealBlob } from './sealed-blob.ts';
import { newSessionId, type SessionId, sessionMarker } from './session.ts';

/** A content whose bytes are about to be sealed. */
export interface NewContent {
  readonly contentId: ContentId;
  readonly originalLength: number;
  readonly timestampSeconds: number;
  /** Rewritten while marked deleted. */
  readonly deleted?: boolean;
}

/** What is stored already, by whomever. */
interface KnownContents {
  find(id: ContentId): IndexEntry | undefined;
  /** For a new entry of the same content: later than that of `present`, in seconds. */
  timestampAfter(present: IndexEntry | undefined): number;
}

/** Seals contents at the given place in a pack's buffer. */
export type SealInto = (address: Uint8Array) => Promise<SealedItem[]> | SealedItem[];

/** What is written between two flushes: its packs, its index entries, its marker blob. */
export class WriteSession implements PackOwner {
  readonly id: SessionId;
  readonly #options: ContentManagerOptions;
  readonly #packs: OpenPacks;
  readonly #startedAtNs: Nanoseconds;
  readonly #entries = new Map<ContentId, IndexEntry>();
  /** Every pack whose bytes are still in memory, for reading back. */
  readonly #inMemory = new Map<string, Pack>();
  readonly #appends = new Set<Promise<unknown>>();
  /** Appends of each kind that have no pack yet. */
  readonly #unplaced: Record<PackKind, number> = { p: 0, q: 0 };
  readonly #puts = new Set<Promise<void>>();
  /** What {@link write} is about to append: hundreds of links have one target, and the first is not found yet. */
  readonly #writing = new Map<ContentId, Promise<void>>();
  /** Set by {@link finish}: nothing will be appended but what waits already. */
  #isFinishing = false;
  #marker: { readonly id: BlobId; readonly bytes: Uint8Array } | undefined;
  #markerPut: Promise<void> | undefined;
  #failure: unknown;
  /** Entries of packs that are put and that no index names yet, and the bytes of those packs. */
  #durable: IndexEntry[] = [];
  #durableBytes = 0;

  constructor(options: ContentManagerOptions, packs: OpenPacks) {
    this.#options = options;
    this.#packs = packs;
    this.#startedAtNs = options.clock.nowNs();
    this.id = newSessionId(options.clock, options.random);
  }

  get isEmpty(): boolean {
    return this.#entries.size === 0 && this.#appends.size === 0 && this.#marker === undefined;
  }

  /** Bytes of packs that are put and wait for an index to name them. */
  get durableBytes(): number {
    return this.#durableBytes;
  }

  /** Their index entries. */
  get durableEntries(): number {
    return this.#durable.length;
  }

  /** Hands over the entries of the packs that are put; `forget` them once an index names them. */
  takeDurable(): IndexEntry[] {
    const taken = this.#durable;
    this.#durable = [];
    this.#durableBytes = 0;
    return taken;
  }

  forget(entries: readonly IndexEntry[]): void {
    for (const entry of entries) {
      // One that was marked deleted meanwhile is another entry.
      if (this.#entries.get(entry.contentId) === entry) this.#entries.delete(entry.contentId);
    }
  }

  find(id: ContentId): IndexEntry | undefined {
    return this.#entries.get(id);
  }

  /** Bytes of a content whose pack is still in memory. */
  packedBytes(entry: IndexEntry): Uint8Array | undefined {
    const pack = this.#inMemory.get(entry.packBlobId);
    return (
      pack &&
      Uint8Array.from(pack.buffer.subarray(entry.packOffset, entry.packOffset + entry.packedLength))
    );
  }

  /** An entry about a content in another pack: a deletion, an undeletion. */
  addEntry(entry: IndexEntry): void {
    this.#entries.set(entry.contentId, entry);
  }

  /**
   * Appends contents to one pack. `roomBytes` bounds what `seal` writes. The entries can be found
   * once the promise settles. Several appends run at once, each with a pack of its own.
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
    // Two may store the same at once, in two packs: named is what the packs' own indexes call the newer one.
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
      await this.#writeMarker();
      const pieces = pack.finish({ ...codec, indexVersion, random });
      await storage.putBlob(pack.blobId, pieces, putOptions);
      // One by one: a pack of tiny files holds more entries than a call takes parameters.
      for (const entry of pack.entries) this.#durable.push(entry);
      this.#durableBytes += pack.length;
    } finally {
      this.#inMemory.delete(pack.blobId);
    }
  }

  drop(pack: Pack, failure: unknown): void {
    this.#inMemory.delete(pack.blobId);
    if (pack.entries.length > 0) this.#failure ??= failure;
  }

  /** The marker keeps other clients' pack deletion away until the index names the packs. */
  async #writeMarker(): Promise<{ id: BlobId; bytes: Uint8Array }> {
    const { storage, codec, clock, client } = this.#options;
    if (!this.#marker) {
      const plaintext = sessionMarker(this.id, this.#startedAtNs, clock, client);
      this.#marker = sealBlob(codec, 's', `-${this.id}`, plaintext);
    }
    const { id, bytes } = this.#marker;
    this.#markerPut ??= storage.putBlob(id, [bytes]);
    try {
      await this.#markerPut;
    } catch (error) {
      // Whoever only asked for the time does without it: the next one tries again.
      this.#markerPut = undefined;
      throw error;
    }
    return { id, bytes };
  }

  /** The time of the storage's clock: that of the marker, which is put now. Throws what the storage throws. */
  async storageTime(): Promise<Nanoseconds> {
    const { storage } = this.#options;
    const isThere = this.#markerPut !== undefined;
    const { id, bytes } = await this.#writeMarker();
    if (isThere) await storage.putBlob(id, [bytes]);
    return (await storage.getMetadata(id)).timestampNs;
  }

  /** How many entries no index names yet. */
  get entryCount(): number {
    return this.#entries.size;
  }

  /** Entries that no index names yet. */
  entries(): IndexEntry[] {
    return [...this.#entries.values()];
  }

  /** Puts all packs; nothing may be appended after this call. Throws what a put of this session threw. */
  async finish(): Promise<void> {
    this.#isFinishing = true;
    this.#packs.closeIdle(this);
    while (this.#appends.size > 0) await Promise.allSettled(this.#appends);
    this.#packs.closeIdle(this);
    while (this.#puts.size > 0) await Promise.allSettled(this.#puts);
    if (this.#failure !== undefined) throw asError(this.#failure);
  }

  /** Deletes the marker: the index names every pack now. */
  async end(): Promise<void> {
    if (this.#marker) await this.#options.storage.deleteBlob(this.#marker.id);
  }

  /** Hashes, compresses and seals in this thread: for metadata and other small contents. */
  async write(
    data: Uint8Array,
    prefix: ContentPrefix,
    compressor: Compressor | undefined,
    manager: KnownContents,
  ): Promise<{ contentId: ContentId; isNew: boolean }> {
    const { hasher, encryptor } = this.#options.codec;
    const contentId = contentIdOf(prefix, hasher.hash([data]));
    const writing = this.#writing.get(contentId);
    if (writing) {
      await writing;
      return { contentId, isNew: false };
    }
    const present = manager.find(contentId);
    if (present && !present.deleted) return { contentId, isNew: false };
    const compressed =
      compressor && this.#options.indexVersion >= 2 ? compressContent(compressor, data) : undefined;
    const plaintext = compressed ?? data;
    const content = {
      contentId,
      originalLength: data.length,
      timestampSeconds: manager.timestampAfter(present),
    };
    const room = plaintext.length + encryptor.overheadBytes;
    const iv = contentIv(hashOf(contentId));
    const appended = this.append(prefix === '' ? 'p' : 'q', [content], room, (out) => [
      {
        packedLength: encryptor.seal([plaintext], iv, out),
        compressionHeaderId: compressed ? (compressor?.headerId ?? 0) : 0,
      },
    ]);
    this.#writing.set(contentId, appended);
    try {
      await appended;
    } finally {
      this.#writing.delete(contentId);
    }
    return { contentId, isNew: true };
  }
}
