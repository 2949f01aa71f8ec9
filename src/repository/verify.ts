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
import { Reread } from './verification/reread.ts';

export interface Problem {
  /** A stable code for scripts. */
  readonly code: 'MISSING_PACK' | 'SHORT_PACK' | 'DAMAGED_CONTENT' | 'UNREADABLE_CONTENT';
  /** The pack that was read. The index may name another pack now. */
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
  /** Length of all packs in the storage. Set once they are listed. */
  packBytes?: number;
}

/** Which packs to read: the next ones in the order of their random names. */
export interface PackSample {
  /** Where the previous verification ended, from 0 to 1. */
  readonly position: number;
  /** Above 0 and up to 1 for all packs. */
  readonly share: number;
  /** After this time no more packs are started, except the first. */
  readonly budgetNs?: Nanoseconds | undefined;
}

export interface VerifyOptions {
  /** Decrypt, decompress and hash every content. */
  readonly readAll: boolean;
  /** Decrypt, decompress and hash the contents of some packs. */
  readonly sample?: PackSample | undefined;
  /**
   * Packs found damaged by an earlier verification, which are read in addition to the sample. They
   * are read first, for half of a limited time, and continue after the sample.
   */
  readonly recheck?: readonly string[];
  /** Called for each rechecked pack that was read or is missing. */
  readonly onRechecked?: (packBlobId: string) => void;
  readonly signal: AbortSignal;
  readonly onProblem: (problem: Problem) => void;
  /** Called with the position reached in the order of packs. */
  readonly onPosition?: (position: number) => Promise<void> | void;
  readonly counters: VerifyCounters;
  /** Maximum index entries in memory. Tests lower it. */
  readonly entriesMax?: number;
}

/** Maximum index entries in memory. With more, the index is read once for each part. */
const ENTRIES_MAX = 1_000_000;
const PACKS_AT_ONCE = 4;
/** The recheck first gets this fraction of the time, and continues at the end. Our choice. */
const SECOND_LOOK_PARTS = 2n;

/**
 * Checks by a listing that every content lies within its pack. Optionally reads the contents of all
 * packs or of a sample, whose bytes must hash to their IDs. Memory is limited for any number of
 * contents. Returns the share of packs read, from 0 to 1. Throws storage errors once the storage is
 * unreachable.
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
  const again = new Reread(present, repository, (pack) => onRechecked?.(pack));
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
  readonly again: Reread;
}

/** Reads the index once. Returns the number of contents in the sample. */
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
    // No await in this loop, because the index may be reloaded during an await.
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
      // An unmounted storage lists nothing.
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

/** Place of a pack in the order of names, as the distance from `position`: 0 to 1. */
function distanceOf(packBlobId: string, position: number): number {
  const place = Number.parseInt(packBlobId.slice(1, 13), 16) / 2 ** 48;
  // Names of other programs may have another form.
  const distance = (Number.isNaN(place) ? 0 : place) - position;
  return distance < 0 ? distance + 1 : distance;
}

/** Whether a sample has a pack. Any name with random digits at characters 2 to 13 works. */
export const isSampled = (packBlobId: string, { position, share }: PackSample): boolean =>
  share >= 1 || distanceOf(packBlobId, position) < share;

interface BytesOptions extends PackOptions {
  readonly sample: PackSample;
  /** Number of contents in the sample. */
  readonly readable: number;
  /** Time since reading began. */
  readonly since: Stopwatch;
  /** The sample and the recheck do not read each other's packs again. */
  readonly again: Reread;
}

/** Reads the packs of a sample in name order, in parts whose entries fit into memory. */
async function verifyBytes(
  repository: Repository,
  lengths: PackLengths,
  options: BytesOptions,
): Promise<number> {
  const { sample, readable, since, again, signal, onPosition, entriesMax = ENTRIES_MAX } = options;
  const { position } = sample;
  const share = Math.min(1, sample.share);
  // Read at least one pack. Otherwise no run would progress if the index alone takes all the time.
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
      // The recheck has already reported this pack's problems.
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

/** Pack lengths by name. Undefined if a lookup by name did not find the pack. */
export type PackLengths = Map<string, number | undefined>;

function sumOf(lengths: PackLengths): number {
  let bytes = 0;
  for (const length of lengths.values()) bytes += length ?? 0;
  return bytes;
}

/** Lists the packs in the storage. */
export async function listPackLengths({ storage }: Repository): Promise<PackLengths> {
  const lengths: PackLengths = new Map();
  for (const prefix of ['p', 'q']) {
    for await (const { id, lengthBytes } of storage.listBlobs(prefix)) lengths.set(id, lengthBytes);
  }
  return lengths;
}

/** Why a content's pack is missing or too short. Finds contents moved since the listing. */
export async function packProblem(
  repository: Repository,
  entry: IndexEntry,
  lengths: PackLengths,
): Promise<PackProblem | undefined> {
  // The content may have been moved twice, so check every new place.
  for (let at = entry; ;) {
    await askForLength(repository, at.packBlobId, lengths);
    const problem = problemOf(at, lengths);
    const isMissing = problem?.code === 'MISSING_PACK';
    const moved = isMissing ? await repository.contents.findMoved(at) : undefined;
    if (!moved) return problem;
    at = moved;
  }
}

/** The index may have been reloaded since the listing, and may name newer packs. */
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
  // Missing and short packs were already reported.
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
 * Whether the content was dropped as deleted after its lookup, so that nothing needs it. With
 * epochs, a missing entry is no proof, because the index never drops entries. The storage may be
 * unmounted and list nothing.
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
  // Read again: bytes changed in transit are not damage, and the content may have moved since its
  // lookup.
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
    // A later read may succeed: the storage may be busy, the blob archived, or a permission or
    // memory missing.
    const message = `blob ${at.packBlobId} could not be read, which need not be damage: content ${contentId}: ${messageOf(error)}`;
    return { code: 'UNREADABLE_CONTENT', ...place, message };
  }
}

/**
 * Call this after a failure that may affect all blobs. Throws if the format blob is unreadable too:
 * the storage is unreachable, unmounted, or its credentials have expired. Otherwise all further
 * reads would be reported as damage.
 */
export async function assertAnswers({ storage }: Repository, failure: unknown): Promise<void> {
  if (!(failure instanceof CodedError)) return;
  if (!failure.code.startsWith('STORAGE_') && failure.code !== 'BLOB_NOT_FOUND') return;
  await assertFormatThere({ storage });
}

const assertFormatThere = ({ storage }: Pick<Repository, 'storage'>): Promise<unknown> =>
  storage.getBlob(FORMAT_BLOB, { fresh: true });
