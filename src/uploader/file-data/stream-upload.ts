import { asError, assert } from '../../base/index.ts';
import {
  type Compressor,
  createSplitter,
  LOOK_BACK_BYTES,
  type Span,
  type Splitter,
  type SplitterSpec,
} from '../../codec/index.ts';
import type { ThreadPool } from '../../volume-files/index.ts';
import { type IndirectEntry, type ObjectId, SLAB_BYTES } from '../../repository/index.ts';
import type { DataWriter } from './data-writer.ts';
import type { HashBatcher } from './hash-batcher.ts';
import type { Slabs } from './slabs.ts';
import type { Stretch } from './stream-stretches.ts';

export interface StreamUploadOptions {
  readonly splitter: SplitterSpec;
  readonly compressor: Compressor | undefined;
  readonly signal?: AbortSignal | undefined;
}

export interface StreamUploadParts {
  readonly pool: ThreadPool;
  readonly slabs: Slabs;
  readonly writer: DataWriter;
  readonly hasher: HashBatcher;
}

/** Bytes of a slab that several chunks use. The slab is released when the last chunk is stored. */
interface SharedStretch {
  users: number;
  readonly release: () => void;
}

/** Like {@link IndirectEntry}, with an id once it is stored. */
interface OpenEntry {
  readonly start: number;
  readonly length: number;
  readonly count: number;
  id: ObjectId | undefined;
}

interface OpenSpan {
  readonly span: Span;
  readonly stretch: SharedStretch | undefined;
}

const isStored = (entry: OpenEntry): entry is OpenEntry & IndirectEntry => entry.id !== undefined;

/**
 * Cuts one stream into chunks, and makes entries of an object from them. Each cut depends on the
 * cut before. Hashing, sealing and reading run in parallel, bounded by the slabs.
 */
export class StreamUpload {
  readonly #parts: StreamUploadParts;
  readonly #options: StreamUploadOptions;
  /** For splitters without a kernel. */
  readonly #splitter: Splitter | undefined;
  readonly #entries: OpenEntry[] = [];
  readonly #stores = new Set<Promise<void>>();
  readonly #tail = new Uint8Array(LOOK_BACK_BYTES);
  #open: OpenSpan[] = [];
  /** Length and start of the open chunk, and the current position in the stream. */
  #openBytes = 0;
  #chunkStart = 0;
  #position = 0;
  #failure: unknown;
  #zeroChunk: Promise<ObjectId> | undefined;

  constructor(parts: StreamUploadParts, options: StreamUploadOptions) {
    this.#parts = parts;
    this.#options = options;
    if (options.splitter.kind !== 'buzhash') this.#splitter = createSplitter(options.splitter);
  }

  /** Reads the stream, and resolves with its pieces in order. An empty stream has one content. */
  async run(stretches: AsyncIterable<Stretch>): Promise<IndirectEntry[]> {
    const { hasher } = this.#parts;
    hasher.beginStream();
    try {
      for await (const stretch of stretches) {
        if (this.#mustEnd() && stretch.kind === 'data') stretch.release();
        this.#options.signal?.throwIfAborted();
        if (this.#failure !== undefined) throw asError(this.#failure);
        if (stretch.kind === 'data') await this.#addData(stretch.span, stretch.release);
        else await this.#addZeros(stretch.length);
      }
      for (const cut of this.#splitter?.finish() ?? []) this.#cutAt(cut);
      if (this.#openBytes > 0 || this.#entries.length === 0) this.#cutAt(this.#position);
    } finally {
      this.#giveUpOpen();
      hasher.endStream();
      while (this.#stores.size > 0) await Promise.allSettled(this.#stores);
    }
    if (this.#failure !== undefined) throw asError(this.#failure);
    assert(this.#entries.every(isStored), 'a chunk was not stored');
    return this.#entries;
  }

  #mustEnd(): boolean {
    return this.#options.signal?.aborted === true || this.#failure !== undefined;
  }

  /** The stored pieces so far, possibly with gaps. More may come during the iteration. */
  *stored(): Generator<IndirectEntry> {
    for (const entry of this.#entries) if (isStored(entry)) yield entry;
  }

  async #addData(span: Span, release: () => void): Promise<void> {
    const stretch: SharedStretch = { users: 1, release };
    try {
      this.#parts.slabs.bytes.set(this.#tail, span.address - LOOK_BACK_BYTES);
      await this.#addSpan(span, stretch);
    } finally {
      this.#drop(stretch);
    }
  }

  /** Zeros are spans of one slab of zeros. A whole chunk of zeros is stored once. */
  async #addZeros(length: number): Promise<void> {
    const { slabs } = this.#parts;
    let left = length;
    assert(!this.#tail.some((byte) => byte !== 0), 'zeros follow other bytes without a lead');
    const { minBytes, kind } = this.#options.splitter;
    while (left > 0) {
      this.#options.signal?.throwIfAborted();
      // Over zeros, all hashes except FastCDC's are zero, which ends a chunk at its minimum.
      if (kind !== 'fastcdc' && this.#openBytes === 0 && left >= minBytes) {
        left -= await this.#addZeroChunks(Math.floor(left / minBytes));
        continue;
      }
      const missing = kind === 'fastcdc' ? SLAB_BYTES : Math.max(1, minBytes - this.#openBytes);
      const take = Math.min(left, missing, SLAB_BYTES);
      await this.#addSpan({ address: slabs.zerosAddress, length: take }, undefined);
      left -= take;
    }
  }

  async #addZeroChunks(count: number): Promise<number> {
    const { minBytes } = this.#options.splitter;
    this.#zeroChunk ??= this.#storeZeroChunk(minBytes);
    const id = await this.#zeroChunk;
    this.#entries.push({ start: this.#position, length: minBytes, count, id });
    const bytes = count * minBytes;
    this.#position += bytes;
    this.#chunkStart = this.#position;
    this.#skipSplitter(bytes);
    return bytes;
  }

  /** A splitter without a kernel tracks its own position, so it must process the zeros. */
  #skipSplitter(bytes: number): void {
    if (!this.#splitter) return;
    const { slabs } = this.#parts;
    for (let left = bytes; left > 0; left -= SLAB_BYTES) {
      const end = slabs.zerosAddress + Math.min(left, SLAB_BYTES);
      this.#splitter.push(slabs.bytes.subarray(slabs.zerosAddress, end));
    }
  }

  async #storeZeroChunk(length: number): Promise<ObjectId> {
    const { pool, writer, slabs } = this.#parts;
    const spans: Span[] = [];
    for (let left = length; left > 0; left -= SLAB_BYTES) {
      spans.push({ address: slabs.zerosAddress, length: Math.min(left, SLAB_BYTES) });
    }
    // Hashed alone, because this stream brings no other chunk meanwhile.
    const [hash = new Uint8Array(0)] = await pool.hash([spans]);
    const chunk = { spans, length, hash, compressor: this.#options.compressor };
    return (await writer.store([chunk]))[0] as ObjectId;
  }

  async #addSpan(span: Span, stretch: SharedStretch | undefined): Promise<void> {
    const start = this.#position;
    const cuts = await this.#findCuts(span);
    const { bytes } = this.#parts.slabs;
    const end = span.address + span.length;
    this.#tail.set(bytes.subarray(end - LOOK_BACK_BYTES, end));
    this.#position += span.length;
    if (stretch) stretch.users++;
    this.#open.push({ span, stretch });
    this.#openBytes += span.length;
    for (const cut of cuts) this.#cutAt(cut);
    assert(this.#position === start + span.length, 'the stream moved while it was being cut');
  }

  /** Offsets in the stream. */
  async #findCuts(span: Span): Promise<number[]> {
    const { pool, slabs } = this.#parts;
    if (this.#splitter) {
      const end = span.address + span.length;
      return this.#splitter.push(slabs.bytes.subarray(span.address, end));
    }
    const { splitter } = this.#options;
    // A chunk below the minimum has no cut, so no thread is needed.
    if (this.#openBytes + span.length < splitter.minBytes) return [];
    const cuts = await pool.cut(splitter, span, this.#openBytes);
    return cuts.map((cut) => this.#position + cut);
  }

  /** Ends the open chunk at an offset of the stream. Later bytes stay open. */
  #cutAt(position: number): void {
    const length = position - this.#chunkStart;
    const spans: OpenSpan[] = [];
    let missing = length;
    while (missing > 0) {
      const first = this.#open[0] as OpenSpan;
      if (first.span.length <= missing) {
        spans.push(first);
        this.#open.shift();
        missing -= first.span.length;
        continue;
      }
      const { address, length: whole } = first.span;
      if (first.stretch) first.stretch.users++;
      spans.push({ span: { address, length: missing }, stretch: first.stretch });
      const rest = { address: address + missing, length: whole - missing };
      this.#open[0] = { span: rest, stretch: first.stretch };
      missing = 0;
    }
    this.#openBytes -= length;
    const start = this.#chunkStart;
    this.#chunkStart = position;
    const entry = { start, length, count: 1, id: undefined };
    this.#entries.push(entry);
    this.#track(this.#store(entry, spans));
  }

  async #store(entry: OpenEntry, open: readonly OpenSpan[]): Promise<void> {
    const { hasher, writer } = this.#parts;
    const spans = open.map(({ span }) => span);
    try {
      const hash = await hasher.hash(spans);
      const { compressor } = this.#options;
      const chunk = { spans, length: entry.length, hash, compressor };
      entry.id = (await writer.store([chunk]))[0];
    } finally {
      for (const { stretch } of open) this.#drop(stretch);
    }
  }

  #track(store: Promise<void>): void {
    const tracked = store
      .catch((error: unknown) => {
        this.#failure ??= error;
      })
      .finally(() => this.#stores.delete(tracked));
    this.#stores.add(tracked);
  }

  #giveUpOpen(): void {
    for (const { stretch } of this.#open) this.#drop(stretch);
    this.#open = [];
  }

  #drop(stretch: SharedStretch | undefined): void {
    if (stretch && --stretch.users === 0) stretch.release();
  }
}
