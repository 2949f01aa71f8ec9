import { setImmediate } from 'node:timers/promises';
import {
  CodedError,
  isCode,
  mapLimited,
  messageOf,
  type Nanoseconds,
  Stopwatch,
} from '../base/index.ts';
import { blobId } from '../blob/index.ts';
import { type ContentId, hashOf } from './index/content-id.ts';
import { FORMAT_BLOB } from './format/format-blob.ts';
import type { IndexEntry } from './index/entry.ts';
import type { Repository } from './repository.ts';
import { entriesByPack, ROWS_AT_ONCE } from './verification/entries-by-pack.ts';
import { bytesOf, RangeBuffers, rangesOf, readRange } from './verification/ranges.ts';
import { SecondLook } from './verification/second-look.ts';

export interface Problem {
  /** A stable word for scripts. */
  readonly code: 'MISSING_PACK' | 'SHORT_PACK' | 'DAMAGED_CONTENT' | 'UNREADABLE_CONTENT';
  /** The pack that was looked at, which may be another than an index names by now. */
  readonly blobId: string;
  readonly contentId: ContentId;
  readonly message: string;
}

export interface PackProblem {
  readonly code: 'MISSING_PACK' | 'SHORT_PACK';
  readonly blobId: string;
  readonly message: string;
}

export interface VerifyCounters {
  contents: number;
  packs: number;
  bytesRead: number;
  /** Of all packs in the storage, from when they were listed on. */
  packBytes?: number;
}

/** Which packs are read: those that come next in the order of their names, which are random. */
export interface PackSample {
  /** From 0 to 1: where the verification before has ended. */
  readonly position: number;
  /** Above 0, up to 1 for all packs. */
  readonly share: number;
  /** No pack is begun after so long, but the first. */
  readonly budgetNs?: Nanoseconds | undefined;
}

export interface VerifyOptions {
  /** Decrypt, decompress and hash every content. */
  readonly readAll: boolean;
  /** The same for the contents of some packs. */
  readonly sample?: PackSample | undefined;
  /**
   * Packs that are read whatever the sample, if they are there: an earlier verification has found
   * them damaged. They come first, for half of a limited time, and go on once the sample is read.
   */
  readonly recheck?: readonly string[];
  /** Called for each of those that was read, or is not there. */
  readonly onRechecked?: (packBlobId: string) => void;
  readonly signal: AbortSignal;
  readonly onProblem: (problem: Problem) => void;
  /** Called with the position up to which packs have been read. */
  readonly onPosition?: (position: number) => Promise<void> | void;
  readonly counters: VerifyCounters;
  /** Index entries held at once; tests lower it. */
  readonly entriesMax?: number;
}

/**
 * Index entries held at once; above it the index is passed over once for each part of the packs.
 */
const ENTRIES_MAX = 1_000_000;
const PACKS_AT_ONCE = 4;
/**
 * Of a limited time, what a second look at damaged packs may take first; it goes on when all else
 * is read. Our choice.
 */
const SECOND_LOOK_PARTS = 2n;

/**
 * Checks that every content lies whole in its pack, by a listing of the packs, and if asked reads
 * those of all packs or of a sample: their bytes must hash to their ids. Memory is bounded for any
 * number of contents. Returns how much of the packs was read, from 0 to 1. Throws what the storage
 * throws once it does not answer at all.
 */
export async function verifyContents(
  repository: Repository,
  options: VerifyOptions,
): Promise<number> {
  const { recheck = [], onRechecked, signal, entriesMax = ENTRIES_MAX } = options;
  const lengths = await listPackLengths(repository);
  options.counters.packBytes = sumOf(lengths);
  const sample = options.sample ?? (options.readAll ? { position: 0, share: 1 } : undefined);
  const [present, absent] = [
    recheck.filter((pack) => lengths.get(pack) !== undefined),
    recheck.filter((pack) => lengths.get(pack) === undefined),
  ];
  const again = new SecondLook(present, repository, (pack) => onRechecked?.(pack));
  const readable = await verifyPresence(repository, lengths, { ...options, sample, again });
  for (const pack of absent) onRechecked?.(pack);
  const since = new Stopwatch(repository.clock);
  const buffers = new RangeBuffers();
  const lookUntil = (untilNs: Nanoseconds | undefined): Promise<void> =>
    again.read(repository, {
      signal,
      entriesMax,
      isOver: () => untilNs !== undefined && since.elapsedNs >= untilNs,
      verify: (_pack, entries) => verifyPack(repository, entries, lengths, { ...options, buffers }),
    });
  const budgetNs = sample?.budgetNs;
  await lookUntil(budgetNs && budgetNs / SECOND_LOOK_PARTS);
  const share = sample
    ? await verifyBytes(repository, lengths, {
        ...options,
        sample,
        readable,
        since,
        again,
        buffers,
      })
    : 0;
  await lookUntil(budgetNs);
  return share;
}

const isOver = (sample: PackSample, since: Stopwatch): boolean =>
  sample.budgetNs !== undefined && since.elapsedNs >= sample.budgetNs;

interface PresenceOptions extends VerifyOptions {
  readonly sample: PackSample | undefined;
  readonly again: SecondLook;
}

/** One pass over the index. Returns how many contents the sample has. */
async function verifyPresence(
  repository: Repository,
  lengths: PackLengths,
  { sample, again, signal, counters, onProblem }: PresenceOptions,
): Promise<number> {
  const { contents } = repository;
  const packs = new Set<string>();
  let sampled = 0;
  let hasAnswered = false;
  let after: ContentId | undefined;
  for (;;) {
    const suspects: IndexEntry[] = [];
    let rows = 0;
    // To its end before the next await: the index may be read anew meanwhile.
    for (const entry of contents.entries({ after })) {
      after = entry.contentId;
      rows++;
      if (entry.packBlobId !== '') {
        packs.add(entry.packBlobId);
        again.count(entry.packBlobId);
        if (sample && isSampled(entry.packBlobId, sample)) sampled++;
        if (problemOf(entry, lengths)) suspects.push(entry);
      }
      if (rows === ROWS_AT_ONCE) break;
    }
    for (const entry of suspects) {
      signal.throwIfAborted();
      const problem = await packProblem(repository, entry, lengths);
      if (!problem || isCollected(repository, entry)) continue;
      // A storage that was unmounted lists nothing at all.
      if (!hasAnswered) await assertFormatThere(repository);
      hasAnswered = true;
      onProblem({ ...problem, contentId: entry.contentId });
    }
    counters.contents += rows;
    counters.packs = packs.size;
    if (rows < ROWS_AT_ONCE) return sampled;
    await setImmediate();
    signal.throwIfAborted();
  }
}

/** Where a pack stands in the order of names, seen from a position: from 0 to 1. */
function distanceOf(packBlobId: string, position: number): number {
  const place = Number.parseInt(packBlobId.slice(1, 13), 16) / 2 ** 48;
  // Names of others may have another form.
  const distance = (Number.isNaN(place) ? 0 : place) - position;
  return distance < 0 ? distance + 1 : distance;
}

/**
 * Whether a pack is among those that a sample reads; the same for other names whose second to 13th
 * digits are random.
 */
export const isSampled = (packBlobId: string, { position, share }: PackSample): boolean =>
  share >= 1 || distanceOf(packBlobId, position) < share;

interface BytesOptions extends PackOptions {
  readonly sample: PackSample;
  /** Contents of the sample. */
  readonly readable: number;
  /** Since reading began. */
  readonly since: Stopwatch;
  /** Those that it has read need not be read once more, and the other way round. */
  readonly again: SecondLook;
}

/**
 * Reads the packs of a sample in the order of their names, as many at a time as their entries have
 * room in memory.
 */
async function verifyBytes(
  repository: Repository,
  lengths: PackLengths,
  options: BytesOptions,
): Promise<number> {
  const { sample, readable, since, again, signal, onPosition, entriesMax = ENTRIES_MAX } = options;
  const { position } = sample;
  const share = Math.min(1, sample.share);
  // One is read in any case: where the index alone takes all the time, no run would ever get
  // further.
  let hasBegun = false;
  const tell = async (distance: number): Promise<void> => {
    await onPosition?.((position + distance) % 1);
  };
  const parts = Math.max(1, Math.ceil(readable / entriesMax));
  for (let part = 0; part < parts; part++) {
    const [from, to] = [(share * part) / parts, (share * (part + 1)) / parts];
    const isWanted = (packBlobId: string): boolean => {
      const distance = distanceOf(packBlobId, position);
      return distance >= from && (distance < to || (part === parts - 1 && share >= 1));
    };
    const { packs } = await entriesByPack(repository, { signal, isWanted });
    const ordered = [...packs].sort(
      ([a], [b]) => distanceOf(a, position) - distanceOf(b, position),
    );
    const open = new Set<number>();
    let stoppedAt: number | undefined;
    await mapLimited(ordered, PACKS_AT_ONCE, async ([packBlobId, entries]) => {
      const distance = distanceOf(packBlobId, position);
      if (stoppedAt !== undefined || (hasBegun && isOver(sample, since))) {
        stoppedAt = Math.min(stoppedAt ?? distance, distance);
        return;
      }
      hasBegun = true;
      open.add(distance);
      // What it has found there was told of already.
      if (!again.hasRead(packBlobId))
        await verifyPack(repository, entries.entries(), lengths, options);
      again.done(packBlobId);
      open.delete(distance);
      await tell(Math.min(distance, ...open));
    });
    await tell(stoppedAt ?? to);
    if (stoppedAt !== undefined) return stoppedAt;
  }
  return share;
}

/**
 * How long each pack is, by its name; undefined for those that were asked for by name, and are not
 * there.
 */
export type PackLengths = Map<string, number | undefined>;

function sumOf(lengths: PackLengths): number {
  let bytes = 0;
  for (const length of lengths.values()) bytes += length ?? 0;
  return bytes;
}

/** The packs in the storage. */
export async function listPackLengths({ storage }: Repository): Promise<PackLengths> {
  const lengths: PackLengths = new Map();
  for (const prefix of ['p', 'q']) {
    for await (const { id, lengthBytes } of storage.listBlobs(prefix)) lengths.set(id, lengthBytes);
  }
  return lengths;
}

/**
 * Why no pack holds a content, by the packs' lengths; undefined when one does. What has moved since
 * they were listed is found.
 */
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

/**
 * The index may have been read anew since the packs were listed, and then it names younger ones
 * too.
 */
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
    return { code: 'MISSING_PACK', blobId: packBlobId, message: `${what}: the blob is missing` };
  }
  if (packOffset + packedLength <= lengthBytes) return undefined;
  return { code: 'SHORT_PACK', blobId: packBlobId, message: `${what}: the blob is cut short` };
}

interface PackOptions extends VerifyOptions {
  readonly buffers: RangeBuffers;
}

async function verifyPack(
  repository: Repository,
  entries: IndexEntry[],
  lengths: PackLengths,
  { signal, counters, onProblem, buffers }: PackOptions,
): Promise<void> {
  entries.sort((a, b) => a.packOffset - b.packOffset);
  // What the listing calls missing or short was told of already.
  const present = entries.filter((entry) => !problemOf(entry, lengths));
  for (const range of rangesOf(present)) {
    signal.throwIfAborted();
    const unsound: IndexEntry[] = [];
    await buffers.lend(bytesOf(range), async (buffer) => {
      const isSound = await readRange(repository, range, buffer);
      for (const entry of range) {
        signal.throwIfAborted();
        if (isSound?.(entry)) counters.bytesRead += entry.packedLength;
        else unsound.push(entry);
      }
      return isSound !== undefined;
    });
    for (const entry of unsound) {
      signal.throwIfAborted();
      const problem = await verifyContent(repository, entry, counters);
      if (problem && !isCollected(repository, entry)) onProblem(problem);
    }
  }
}

/**
 * Whether it was dropped as deleted since it was looked up: it is missed by nobody then. That the
 * index does not know it any more is not enough with epochs, which forget nothing: the storage may
 * have been unmounted, and list nothing at all.
 */
function isCollected(
  { contents, format }: Repository,
  { contentId, deleted }: IndexEntry,
): boolean {
  if (contents.find(contentId)) return false;
  if (!format.parameters.epochParameters.Enabled) return deleted;
  return contents.findHidden(contentId)?.deleted === true;
}

async function verifyContent(
  repository: Repository,
  entry: IndexEntry,
  counters: VerifyCounters,
): Promise<Problem | undefined> {
  const { contents, storage, codec } = repository;
  const { contentId } = entry;
  let at = entry;
  const read = async (fresh: boolean): Promise<Uint8Array> => {
    const { packBlobId, packOffset: offset, packedLength: lengthBytes } = at;
    const packed = await storage.getBlob(blobId(packBlobId), { offset, lengthBytes, fresh });
    counters.bytesRead += lengthBytes;
    return contents.openPacked(at, packed);
  };
  // Bytes that changed in transit are not damage, nor is a content that was moved since it was
  // looked up.
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
    const message = `blob ${at.packBlobId} is damaged: content ${contentId}: its bytes have a different hash`;
    return { code: 'DAMAGED_CONTENT', blobId: at.packBlobId, contentId, message };
  } catch (error) {
    await assertAnswers(repository, error);
    const place = { blobId: at.packBlobId, contentId };
    if (isCode(error, 'DAMAGED_BLOB', 'BLOB_NOT_FOUND', 'INVALID_RANGE')) {
      return { code: 'DAMAGED_CONTENT', ...place, message: messageOf(error) };
    }
    // A storage that is busy, an archived blob, a right or memory that is missing: it may be read
    // again later.
    const message = `blob ${at.packBlobId} could not be read, which need not be damage: content ${contentId}: ${messageOf(error)}`;
    return { code: 'UNREADABLE_CONTENT', ...place, message };
  }
}

/**
 * After a failure that need not be of one blob alone: throws where the storage does not give out
 * the format of the repository either. It cannot be reached any more, its file system was
 * unmounted, or its credentials have ended, and whatever is read next would be called damaged too.
 */
export async function assertAnswers({ storage }: Repository, failure: unknown): Promise<void> {
  if (!(failure instanceof CodedError)) return;
  if (!failure.code.startsWith('STORAGE_') && failure.code !== 'BLOB_NOT_FOUND') return;
  await assertFormatThere({ storage });
}

const assertFormatThere = ({ storage }: Pick<Repository, 'storage'>): Promise<unknown> =>
  storage.getBlob(FORMAT_BLOB, { fresh: true });
