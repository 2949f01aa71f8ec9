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
  /** For the indexes above, when there are any. */
  metadataCompressor: Compressor | undefined;
  splitter: SplitterSpec;
  /** Indexes are split by the repository's own splitter, whatever the object's is. */
  indexSplitter: SplitterSpec;
}

/** Writes parts that follow one another as one object: directories, indexes, symlink targets. */
export async function writeObject(
  contents: ContentManager,
  parts: Iterable<Uint8Array>,
  options: WriteObjectOptions,
): Promise<ObjectId> {
  const writer = new ObjectWriter(contents, options);
  for (const part of parts) await writer.push(part);
  return writer.finish();
}

/** The same, part by part as they come: one chunk at most is held. One call at a time. */
export class ObjectWriter {
  readonly #contents: ContentManager;
  readonly #options: WriteObjectOptions;
  readonly #chunker: Chunker;
  readonly #entries: IndirectEntry[];
  #start: number;

  /** `mark`: goes on behind its pieces; its rest is still to be pushed. */
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

  /** What was pushed so far. No call of {@link push} may be under way. */
  mark(): ObjectMark {
    return { pieces: [...this.#entries], start: this.#start, rest: this.#chunker.rest() };
  }

  async #write(chunk: Uint8Array): Promise<void> {
    const id = await writeChunk(this.#contents, chunk, this.#options);
    this.#entries.push({ start: this.#start, length: chunk.length, id, count: 1 });
    this.#start += chunk.length;
  }
}

/**
 * What an {@link ObjectWriter} was given up to some moment: pieces that are stored, and bytes that
 * are not.
 */
export interface ObjectMark {
  readonly pieces: readonly IndirectEntry[];
  readonly start: number;
  readonly rest: Uint8Array;
}

/**
 * An object of what was marked and of what follows it, part by part as they come; the writer itself
 * goes on.
 */
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

/** The id of an object made of these pieces: the one piece itself, or an index above them. */
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

/** Chunks of a stream, which is never empty of them: no bytes are one empty chunk. */
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
    // Most objects end before they could be cut.
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

  /** What no chunk holds yet; the bytes are the caller's. */
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
  // File data carries its header inside (`Z` objects) where contents cannot.
  if (!contents.storesCompressed && compressor && prefix === '') {
    const packed = compressContent(compressor, chunk);
    if (packed) return `Z${(await contents.write(packed, { prefix })).contentId}` as ObjectId;
  }
  const { contentId } = await contents.write(chunk, { prefix, compressor });
  return contentId as string as ObjectId;
}
