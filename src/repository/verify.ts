import { isCode, mapLimited, messageOf } from '../base/index.ts';
import { blobId } from '../blob/index.ts';
import { hashOf } from './content/content-id.ts';
import type { IndexEntry } from './index/entry.ts';
import type { Repository } from './repository.ts';

export interface Problem {
  /** A stable word for scripts. */
  readonly code: 'MISSING_PACK' | 'SHORT_PACK' | 'DAMAGED_CONTENT';
  readonly blobId: string;
  readonly contentId: string;
  readonly message: string;
}

export interface PackProblem {
  readonly code: 'MISSING_PACK' | 'SHORT_PACK';
  readonly message: string;
}

export interface VerifyCounters {
  contents: number;
  packs: number;
  bytesRead: number;
}

export interface VerifyOptions {
  /** Decrypt, decompress and hash every content. */
  readonly readAll: boolean;
  readonly signal: AbortSignal;
  readonly onProblem: (problem: Problem) => void;
  readonly counters: VerifyCounters;
}

/** Index entries held at once; above it the index is passed over once for each share of the packs. */
const ENTRIES_MAX = 1_000_000;
const PACKS_AT_ONCE = 4;

/** Checks that every content lies whole in its pack and, if asked, that its bytes hash to its id. */
export async function verifyContents(
  repository: Repository,
  options: VerifyOptions,
): Promise<void> {
  const lengths = await listPackLengths(repository);
  for (const packs of entriesByPack(repository)) {
    await mapLimited(packs, PACKS_AT_ONCE, async ([packBlobId, entries]) => {
      options.signal.throwIfAborted();
      options.counters.packs++;
      await verifyPack(repository, packBlobId, entries, lengths, options);
    });
  }
}

/** How long each pack in the storage is, by its name. */
export async function listPackLengths({ storage }: Repository): Promise<Map<string, number>> {
  const lengths = new Map<string, number>();
  for (const prefix of ['p', 'q']) {
    for await (const { id, lengthBytes } of storage.listBlobs(prefix)) lengths.set(id, lengthBytes);
  }
  return lengths;
}

/** Why no pack holds a content, by the packs' lengths; undefined when one does. What has moved since they were listed is found. */
export async function packProblem(
  { contents, storage }: Repository,
  entry: IndexEntry,
  lengths: Map<string, number>,
): Promise<PackProblem | undefined> {
  const problem = problemOf(entry, lengths);
  if (problem?.code !== 'MISSING_PACK') return problem;
  const moved = await contents.findMoved(entry);
  if (!moved) return problem;
  const id = blobId(moved.packBlobId);
  if (!lengths.has(id)) {
    const metadata = await storage.getMetadata(id).catch(asMissing);
    if (metadata) lengths.set(id, metadata.lengthBytes);
  }
  return problemOf(moved, lengths);
}

function asMissing(error: unknown): undefined {
  if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
}

function problemOf(
  { contentId, packBlobId, packOffset, packedLength }: IndexEntry,
  lengths: ReadonlyMap<string, number>,
): PackProblem | undefined {
  const lengthBytes = lengths.get(packBlobId);
  const what = `blob ${packBlobId} is damaged: content ${contentId}`;
  if (lengthBytes === undefined) {
    return { code: 'MISSING_PACK', message: `${what}: the blob is missing` };
  }
  if (packOffset + packedLength <= lengthBytes) return undefined;
  return { code: 'SHORT_PACK', message: `${what}: the blob is cut short` };
}

/** Entries grouped by pack, in bounded memory. */
export function* entriesByPack(repository: Repository): Generator<Map<string, IndexEntry[]>> {
  let total = 0;
  for (const entry of repository.contents.entries()) if (entry.packBlobId) total++;
  const shares = Math.max(1, Math.ceil(total / ENTRIES_MAX));
  for (let share = 0; share < shares; share++) {
    const packs = new Map<string, IndexEntry[]>();
    for (const entry of repository.contents.entries()) {
      if (shares > 1 && shareOf(entry.packBlobId, shares) !== share) continue;
      const list = packs.get(entry.packBlobId);
      if (list) list.push(entry);
      else packs.set(entry.packBlobId, [entry]);
    }
    yield packs;
  }
}

/** Pack names are random, so a few of their digits spread them evenly. */
const shareOf = (packBlobId: string, shares: number): number =>
  Number.parseInt(packBlobId.slice(1, 9), 16) % shares;

async function verifyPack(
  repository: Repository,
  packBlobId: string,
  entries: IndexEntry[],
  lengths: Map<string, number>,
  options: VerifyOptions,
): Promise<void> {
  const { counters, onProblem } = options;
  entries.sort((a, b) => a.packOffset - b.packOffset);
  for (const entry of entries) {
    options.signal.throwIfAborted();
    counters.contents++;
    const report = (code: Problem['code'], message: string): void => {
      onProblem({ code, blobId: packBlobId, contentId: entry.contentId, message });
    };
    const problem = await packProblem(repository, entry, lengths);
    if (problem) {
      report(problem.code, problem.message);
    } else if (options.readAll) {
      const message = await verifyContent(repository, entry, counters);
      if (message !== undefined) report('DAMAGED_CONTENT', message);
    }
  }
}

async function verifyContent(
  { contents, storage, codec }: Repository,
  entry: IndexEntry,
  counters: VerifyCounters,
): Promise<string | undefined> {
  const { contentId } = entry;
  let { packBlobId } = entry;
  const read = async (from: IndexEntry, fresh: boolean): Promise<Uint8Array> => {
    const { packOffset: offset, packedLength: lengthBytes } = from;
    packBlobId = from.packBlobId;
    const packed = await storage.getBlob(blobId(packBlobId), { offset, lengthBytes, fresh });
    counters.bytesRead += lengthBytes;
    return contents.openPacked(from, packed);
  };
  try {
    // What changed on its way is not damaged, nor what was moved since it was looked up.
    const plaintext = await read(entry, false).catch(async (error: unknown) => {
      const moved = isCode(error, 'BLOB_NOT_FOUND') ? await contents.findMoved(entry) : undefined;
      return read(moved ?? entry, true);
    });
    const hash = codec.hasher.hash([plaintext]);
    if (Buffer.compare(hash, hashOf(contentId)) === 0) return undefined;
    return `blob ${packBlobId} is damaged: content ${contentId}: its bytes hash to another id`;
  } catch (error) {
    return messageOf(error);
  }
}
