import { CodedError, isCode, mapLimited, messageOf } from '../base/index.ts';
import { blobId } from '../blob/index.ts';
import { hashOf } from './content/content-id.ts';
import { FORMAT_BLOB } from './format/format-blob.ts';
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

/** How long each pack is, by its name; undefined for those that were asked for by name, and are not there. */
export type PackLengths = Map<string, number | undefined>;

/** The packs in the storage. */
export async function listPackLengths({ storage }: Repository): Promise<PackLengths> {
  const lengths: PackLengths = new Map();
  for (const prefix of ['p', 'q']) {
    for await (const { id, lengthBytes } of storage.listBlobs(prefix)) lengths.set(id, lengthBytes);
  }
  return lengths;
}

/** Why no pack holds a content, by the packs' lengths; undefined when one does. What has moved since they were listed is found. */
export async function packProblem(
  repository: Repository,
  entry: IndexEntry,
  lengths: PackLengths,
): Promise<PackProblem | undefined> {
  // What has moved twice is looked for at its second place too.
  for (let at = entry; ;) {
    await askForLength(repository, at.packBlobId, lengths);
    const problem = problemOf(at, lengths);
    const isMissing = problem?.code === 'MISSING_PACK';
    const moved = isMissing ? await repository.contents.findMoved(at) : undefined;
    if (!moved) return problem;
    at = moved;
  }
}

/** The index may have been read anew since the packs were listed, and then it names younger ones too. */
async function askForLength(
  { storage }: Repository,
  pack: string,
  lengths: PackLengths,
): Promise<void> {
  if (lengths.has(pack)) return;
  const metadata = await storage.getMetadata(blobId(pack)).catch(asMissing);
  lengths.set(pack, metadata?.lengthBytes);
}

function asMissing(error: unknown): undefined {
  if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
}

function problemOf(
  { contentId, packBlobId, packOffset, packedLength }: IndexEntry,
  lengths: Readonly<Pick<PackLengths, 'get'>>,
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
function* entriesByPack(repository: Repository): Generator<Map<string, IndexEntry[]>> {
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
  lengths: PackLengths,
  options: VerifyOptions,
): Promise<void> {
  const { counters, onProblem } = options;
  entries.sort((a, b) => a.packOffset - b.packOffset);
  for (const entry of entries) {
    options.signal.throwIfAborted();
    counters.contents++;
    const problem = await problemWith(repository, entry, lengths, options);
    if (problem && !isCollected(repository, entry)) {
      onProblem({ ...problem, blobId: packBlobId, contentId: entry.contentId });
    }
  }
}

/**
 * Whether it was dropped as deleted since it was looked up: it is missed by nobody then. That the index does not know it any
 * more is not enough with epochs, which forget nothing: the storage may have been unmounted, and list nothing at all.
 */
function isCollected(
  { contents, format }: Repository,
  { contentId, deleted }: IndexEntry,
): boolean {
  if (contents.find(contentId)) return false;
  if (!format.parameters.epochParameters.Enabled) return deleted;
  return contents.findHidden(contentId)?.deleted === true;
}

async function problemWith(
  repository: Repository,
  entry: IndexEntry,
  lengths: PackLengths,
  { readAll, counters }: VerifyOptions,
): Promise<Pick<Problem, 'code' | 'message'> | undefined> {
  const problem = await packProblem(repository, entry, lengths);
  if (problem || !readAll) return problem;
  const message = await verifyContent(repository, entry, counters);
  return message === undefined ? undefined : { code: 'DAMAGED_CONTENT', message };
}

async function verifyContent(
  repository: Repository,
  entry: IndexEntry,
  counters: VerifyCounters,
): Promise<string | undefined> {
  const { contents, storage, codec } = repository;
  const { contentId } = entry;
  let at = entry;
  const read = async (fresh: boolean): Promise<Uint8Array> => {
    const { packBlobId, packOffset: offset, packedLength: lengthBytes } = at;
    const packed = await storage.getBlob(blobId(packBlobId), { offset, lengthBytes, fresh });
    counters.bytesRead += lengthBytes;
    return contents.openPacked(at, packed);
  };
  // Bytes that changed in transit are not damage, nor is a content that was moved since it was looked up.
  const readMoved = async (error: unknown): Promise<Uint8Array> => {
    const moved = isCode(error, 'BLOB_NOT_FOUND') ? await contents.findMoved(at) : undefined;
    if (!moved) return read(true);
    at = moved;
    return read(false).catch(readMoved);
  };
  try {
    const plaintext = await read(false).catch(readMoved);
    const hash = codec.hasher.hash([plaintext]);
    if (Buffer.compare(hash, hashOf(contentId)) === 0) return undefined;
    return `blob ${at.packBlobId} is damaged: content ${contentId}: its bytes have a different hash`;
  } catch (error) {
    await assertAnswers(repository, error);
    return messageOf(error);
  }
}

/**
 * After a failure that need not be of one blob alone: throws where the storage does not give out the format of the repository
 * either. It cannot be reached any more, its file system was unmounted, or its credentials have ended, and whatever is read
 * next would be called damaged too.
 */
export async function assertAnswers({ storage }: Repository, failure: unknown): Promise<void> {
  if (!(failure instanceof CodedError)) return;
  if (!failure.code.startsWith('STORAGE_') && failure.code !== 'BLOB_NOT_FOUND') return;
  await storage.getBlob(FORMAT_BLOB, { fresh: true });
}
