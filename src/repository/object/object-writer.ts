import {
  compressContent,
  type Compressor,
  createSplitter,
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

/** Writes bytes that are in memory as one object: directories, indexes, symlink targets. */
export async function writeObject(
  contents: ContentManager,
  data: Uint8Array,
  options: WriteObjectOptions,
): Promise<ObjectId> {
  const entries: IndirectEntry[] = [];
  for (const chunk of chunksOf(data, options.splitter)) {
    const id = await writeChunk(contents, chunk, options);
    entries.push({ start: chunk.byteOffset - data.byteOffset, length: chunk.length, id });
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
  if (only && entries.length === 1) return only.id;
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

function chunksOf(data: Uint8Array, spec: SplitterSpec): Uint8Array[] {
  if (data.length < spec.minBytes) return [data];
  const splitter = createSplitter(spec);
  const cuts = [...splitter.push(data), ...splitter.finish()].filter((cut) => cut < data.length);
  const ends = [...cuts, data.length];
  return ends.map((end, i) => data.subarray(ends[i - 1] ?? 0, end));
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
