import {
  compressContent,
  type Compressor,
  createSplitter,
  type Splitter,
  type SplitterSpec,
} from '../../codec/index.ts';
import type { ContentPrefix } from '../content/content-id.ts';
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
  const entries: IndirectEntry[] = [];
  let start = 0;
  for (const chunk of chunksOf(parts, options.splitter)) {
    const id = await writeChunk(contents, chunk, options);
    entries.push({ start, length: chunk.length, id, count: 1 });
    start += chunk.length;
  }
  return finishObject(contents, entries, options);
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
function* chunksOf(parts: Iterable<Uint8Array>, spec: SplitterSpec): Generator<Uint8Array> {
  let splitter: Splitter | undefined;
  let open: Uint8Array[] = [];
  let openStart = 0;
  let end = 0;
  const cutAt = (cut: number): Uint8Array => {
    const bytes = open.length === 1 ? (open[0] as Uint8Array) : Buffer.concat(open);
    open = [bytes.subarray(cut - openStart)];
    const chunk = bytes.subarray(0, cut - openStart);
    openStart = cut;
    return chunk;
  };
  for (const part of parts) {
    open.push(part);
    end += part.length;
    // Most objects end before they could be cut.
    if (!splitter && end < spec.minBytes) continue;
    const unseen = splitter ? [part] : open;
    splitter ??= createSplitter(spec);
    const cuts: number[] = [];
    for (const bytes of unseen) cuts.push(...splitter.push(bytes));
    for (const cut of cuts) yield cutAt(cut);
  }
  for (const cut of splitter?.finish() ?? []) yield cutAt(cut);
  if (end > openStart || end === 0) yield cutAt(end);
}

async function writeChunk(
  contents: ContentManager,
  chunk: Uint8Array,
  { prefix, compressor }: WriteObjectOptions,
): Promise<ObjectId> {
  // Index version 1 knows no compressed contents: file data carries its header inside (`Z` objects).
  if (contents.options.indexVersion === 1 && compressor && prefix === '') {
    const packed = compressContent(compressor, chunk);
    if (packed) return `Z${(await contents.write(packed, { prefix })).contentId}` as ObjectId;
  }
  const { contentId } = await contents.write(chunk, { prefix, compressor });
  return contentId as string as ObjectId;
}
