import {
  compressContent,
  type Compressor,
  createSplitter,
  type Splitter,
  type SplitterSpec,
} from '../../codec/index.ts';
import type { ContentPrefix } from '../index/content-id.ts';
import type { ContentManager } from '../content/content-manager.ts';
import { encodeIndirect, type IndirectEntry } from './indirect.ts';
import type { ObjectId } from './object-id.ts';

export interface WriteObjectOptions {
  prefix: ContentPrefix;
  compressor: Compressor | undefined;
  /** Compresses the object's indexes. */
  metadataCompressor: Compressor | undefined;
  splitter: SplitterSpec;
  /** Indexes always use the repository's splitter. */
  indexSplitter: SplitterSpec;
}

/** Writes consecutive parts as one object: directories, indexes, symlink targets. */
export async function writeObject(
  contents: ContentManager,
  parts: Iterable<Uint8Array>,
  options: WriteObjectOptions,
): Promise<ObjectId> {
  const writer = new ObjectWriter(contents, options);
  for (const part of parts) await writer.push(part);
  return writer.finish();
}

/** Writes an object part by part. Holds at most one chunk. Do not call it concurrently. */
export class ObjectWriter {
  readonly #contents: ContentManager;
  readonly #options: WriteObjectOptions;
  readonly #chunker: Chunker;
  readonly #entries: IndirectEntry[];
  #start: number;

  /** With `mark`, continues after its pieces. The caller pushes its `rest` first. */
  constructor(
    contents: ContentManager,
    options: WriteObjectOptions,
    mark: Omit<ObjectMark, 'rest'> = { pieces: [], start: 0 },
  ) {
    this.#contents = contents;
    this.#options = options;
    this.#chunker = new Chunker(options.splitter);
    this.#entries = [...mark.pieces];
    this.#start = mark.start;
  }

  async push(part: Uint8Array): Promise<void> {
    for (const chunk of this.#chunker.push(part)) await this.#write(chunk);
  }

  async finish(): Promise<ObjectId> {
    for (const chunk of this.#chunker.finish()) await this.#write(chunk);
    return finishObject(this.#contents, this.#entries, this.#options);
  }

  /** The state after all pushes so far. No {@link push} may be running. */
  mark(): ObjectMark {
    return { pieces: [...this.#entries], start: this.#start, rest: this.#chunker.rest() };
  }

  async #write(chunk: Uint8Array): Promise<void> {
    const id = await writeChunk(this.#contents, chunk, this.#options);
    this.#entries.push({ start: this.#start, length: chunk.length, id, count: 1 });
    this.#start += chunk.length;
  }
}

/** The input of an {@link ObjectWriter} up to a moment: stored pieces, and bytes not stored yet. */
export interface ObjectMark {
  readonly pieces: readonly IndirectEntry[];
  readonly start: number;
  readonly rest: Uint8Array;
}

/** Writes an object from a mark and the parts after it. The marked writer can continue. */
export async function writeMarked(
  contents: ContentManager,
  mark: ObjectMark,
  parts: Iterable<Uint8Array>,
  options: WriteObjectOptions,
): Promise<ObjectId> {
  const writer = new ObjectWriter(contents, options, mark);
  await writer.push(mark.rest);
  for (const part of parts) await writer.push(part);
  return writer.finish();
}

/** The ID of an object with these pieces: the only piece itself, or an index above them. */
export async function finishObject(
  contents: ContentManager,
  entries: readonly IndirectEntry[],
  options: Pick<WriteObjectOptions, 'prefix' | 'metadataCompressor' | 'indexSplitter'>,
): Promise<ObjectId> {
  const [only] = entries;
  if (only && entries.length === 1 && only.count === 1) return only.id;
  const { metadataCompressor, indexSplitter } = options;
  const index = await writeObject(contents, encodeIndirect(entries), {
    prefix: options.prefix === '' ? 'x' : options.prefix,
    compressor: metadataCompressor,
    metadataCompressor,
    splitter: indexSplitter,
    indexSplitter,
  });
  return `I${index}` as ObjectId;
}

/** Splits a stream into chunks. An empty stream gives one empty chunk. */
class Chunker {
  readonly #spec: SplitterSpec;
  #splitter: Splitter | undefined;
  #open: Uint8Array[] = [];
  #openStart = 0;
  #end = 0;

  constructor(spec: SplitterSpec) {
    this.#spec = spec;
  }

  *push(part: Uint8Array): Generator<Uint8Array> {
    this.#open.push(part);
    this.#end += part.length;
    // Most objects end before the first possible cut.
    if (!this.#splitter && this.#end < this.#spec.minBytes) return;
    const unseen = this.#splitter ? [part] : this.#open;
    this.#splitter ??= createSplitter(this.#spec);
    const cuts: number[] = [];
    for (const bytes of unseen) cuts.push(...this.#splitter.push(bytes));
    for (const cut of cuts) yield this.#cutAt(cut);
  }

  *finish(): Generator<Uint8Array> {
    for (const cut of this.#splitter?.finish() ?? []) yield this.#cutAt(cut);
    if (this.#end > this.#openStart || this.#end === 0) yield this.#cutAt(this.#end);
  }

  /** Bytes that are not in a chunk yet. The caller owns the result. */
  rest(): Uint8Array {
    return Buffer.concat(this.#open);
  }

  #cutAt(cut: number): Uint8Array {
    const [only] = this.#open;
    const bytes = only && this.#open.length === 1 ? only : Buffer.concat(this.#open);
    const chunk = bytes.subarray(0, cut - this.#openStart);
    this.#open = [bytes.subarray(cut - this.#openStart)];
    this.#openStart = cut;
    return chunk;
  }
}

async function writeChunk(
  contents: ContentManager,
  chunk: Uint8Array,
  { prefix, compressor }: WriteObjectOptions,
): Promise<ObjectId> {
  // With index version 1, file data includes its compression header (`Z` objects).
  if (!contents.storesCompressed && compressor && prefix === '') {
    const packed = compressContent(compressor, chunk);
    if (packed) return `Z${(await contents.write(packed, { prefix })).contentId}` as ObjectId;
  }
  const { contentId } = await contents.write(chunk, { prefix, compressor });
  return contentId as string as ObjectId;
}
