import {
  formatGoTime,
  mapLimited,
  randomHex,
  type Nanoseconds,
  unixSeconds,
} from '../../base/index.ts';
import { type BlobId, blobId, type BlobMetadata } from '../../blob/index.ts';
import {
  epochBlobs,
  epochMarkerId,
  epochPrefix,
  type EpochState,
  lastRangeEpoch,
  loadEpochState,
} from '../content/epoch-state.ts';
import { forEachIndexBlob, sealBlob } from '../content/sealed-blob.ts';
import { CommittedIndex } from '../index/committed-index.ts';
import type { IndexEntry } from '../index/entry.ts';
import { encodeIndex } from '../index/index-writer.ts';
import { protectedPut, type Repository } from '../repository.ts';
import type { TaskContext, TaskStats } from './task.ts';

/** Entries of one compacted blob. Kopia makes one of up to 16 million; ours are put from memory, so smaller. */
const SHARD_ENTRIES = 250_000;
/** What the blobs being merged may take; more goes to scratch files. */
const INDEX_MEMORY_BYTES = 48 << 20;
const DELETES_AT_ONCE = 4;

/** Merges the blobs of the oldest settled epoch that is not compacted yet. */
export async function compactSingleEpoch(context: TaskContext): Promise<TaskStats> {
  const { repository } = context;
  const state = await loadEpochState(repository.storage);
  let epoch = lastRangeEpoch(state) + 1;
  while (state.compacted.has(epoch)) epoch++;
  let count = 0;
  let bytes = 0;
  if (epoch <= state.writeEpoch - 2) {
    const blobs = epochBlobs(state, epoch);
    count = blobs.length;
    bytes = blobs.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
    if (context.apply) await writeCompaction(repository, `xs${epoch}_`, blobs);
  }
  return {
    kind: 'compactSingleEpochStats',
    data: { supersededIndexBlobCount: count, supersededIndexTotalSize: bytes, epoch },
  };
}

/** Starts the next epoch when the current one is old and large enough. */
export async function advanceEpoch(context: TaskContext): Promise<TaskStats> {
  const { storage, format } = context.repository;
  const parameters = format.parameters.epochParameters;
  const { writeEpoch, written } = await loadEpochState(storage);
  const blobs = written.get(writeEpoch) ?? [];
  const times = blobs.map(({ timestampNs }) => timestampNs);
  const spanNs = times.length === 0 ? 0n : maxOf(times) - minOf(times);
  const bytes = blobs.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
  const isDue =
    blobs.length > 0 &&
    spanNs >= BigInt(parameters.MinEpochDuration) &&
    (blobs.length >= parameters.EpochAdvanceOnCountThreshold ||
      bytes >= parameters.EpochAdvanceOnTotalSizeBytesThreshold);
  if (isDue && context.apply) {
    await storage.putBlob(blobId(epochMarkerId(writeEpoch + 1)), [Buffer.from('epoch-marker')]);
  }
  const wasAdvanced = isDue && context.apply;
  const currentEpoch = wasAdvanced ? writeEpoch + 1 : writeEpoch;
  return { kind: 'advanceEpochStats', data: { currentEpoch, wasAdvanced } };
}

/** Merges a long run of settled epochs into one set. */
export async function compactRange(context: TaskContext): Promise<TaskStats | undefined> {
  const { repository } = context;
  const state = await loadEpochState(repository.storage);
  const first = lastRangeEpoch(state) + 1;
  const last = state.writeEpoch - 2;
  const { FullCheckpointFrequency } = repository.format.parameters.epochParameters;
  if (last - first < FullCheckpointFrequency) return undefined;
  if (context.apply) {
    const blobs: BlobMetadata[] = [];
    for (let epoch = first; epoch <= last; epoch++) {
      blobs.push(...epochBlobs(state, epoch));
    }
    await writeCompaction(repository, `xr${first}_${last}_`, blobs);
  }
  return {
    kind: 'generateRangeCheckpointStats',
    data: { rangeMinEpoch: first, rangeMaxEpoch: last },
  };
}

/** Deletes epoch markers and watermarks that newer ones replace. */
export async function cleanupMarkers(context: TaskContext): Promise<TaskStats> {
  const { storage } = context.repository;
  const state = await loadEpochState(storage);
  const cutoffNs = (await newestIndexNs(context.repository, state)) - safetyMarginNs(context);
  const markers = state.markers.filter(({ id }) => Number(id.slice(2)) < state.writeEpoch - 1);
  const watermarks = state.watermarks.filter(
    ({ id, timestampNs }) =>
      Number(id.slice(2)) !== state.watermarkSeconds && timestampNs < cutoffNs,
  );
  await deleteAll(context, [...markers, ...watermarks]);
  return {
    kind: 'cleanupMarkersStats',
    data: {
      deletedEpochMarkerBlobCount: markers.length,
      deletedWatermarkBlobCount: watermarks.length,
    },
  };
}

/** Deletes the blobs of writers whose epoch has been compacted long enough ago. */
export async function deleteSupersededIndexes(context: TaskContext): Promise<TaskStats> {
  const { repository } = context;
  const state = await loadEpochState(repository.storage);
  const cutoffNs = (await newestIndexNs(repository, state)) - safetyMarginNs(context);
  const doomed: BlobMetadata[] = [];
  for await (const blob of repository.storage.listBlobs('xn')) {
    const epoch = Number(/^xn(\d+)_/.exec(blob.id)?.[1] ?? Number.NaN);
    const compacted = epoch <= state.writeEpoch - 2 ? state.compacted.get(epoch) : undefined;
    const replacedNs = compacted && maxOf(compacted.map(({ timestampNs }) => timestampNs));
    if (replacedNs !== undefined && replacedNs < cutoffNs) doomed.push(blob);
  }
  await deleteAll(context, doomed);
  return {
    kind: 'cleanupSupersededIndexesStats',
    data: {
      maxReplacementTime: formatGoTime(cutoffNs > 0n ? cutoffNs : 0n),
      deletedBlobCount: doomed.length,
      deletedTotalSize: doomed.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0),
    },
  };
}

/** Hides entries deleted up to a time. The watermark never moves back. */
export async function putWatermark(context: TaskContext, untilNs: Nanoseconds): Promise<void> {
  const { storage } = context.repository;
  const { watermarkSeconds } = await loadEpochState(storage);
  const seconds = unixSeconds(untilNs);
  if (!context.apply || seconds < watermarkSeconds || seconds <= 0) return;
  await storage.putBlob(blobId(`xw${seconds}`), [Buffer.from('deletion-watermark')]);
}

/** Time by the storage's own clock: its newest index blob; 0 when there is none, so that nothing is old. */
async function newestIndexNs({ storage }: Repository, state: EpochState): Promise<Nanoseconds> {
  let newest = 0n;
  for (const epoch of [state.writeEpoch - 1, state.writeEpoch, state.writeEpoch + 1]) {
    for await (const { timestampNs } of storage.listBlobs(epochPrefix(epoch))) {
      if (timestampNs > newest) newest = timestampNs;
    }
  }
  return newest;
}

const safetyMarginNs = ({ repository }: TaskContext): Nanoseconds =>
  BigInt(repository.format.parameters.epochParameters.CleanupSafetyMargin);

async function deleteAll(
  { repository, apply, signal }: TaskContext,
  blobs: readonly BlobMetadata[],
): Promise<void> {
  if (!apply) return;
  await mapLimited(blobs, DELETES_AT_ONCE, ({ id }) => {
    signal.throwIfAborted();
    return repository.storage.deleteBlob(id);
  });
}

/** Merges index blobs into one set of shards; deleted entries are kept. The set counts once it is whole. */
async function writeCompaction(
  repository: Repository,
  prefix: string,
  blobs: readonly BlobMetadata[],
): Promise<BlobId[]> {
  const { storage, codec, format } = repository;
  const index = new CommittedIndex(INDEX_MEMORY_BYTES, 0);
  try {
    await forEachIndexBlob(storage, codec, blobs, (body) => {
      index.add(body);
    });
    const total = countOf(index.entries());
    const shards = Math.max(1, Math.ceil(total / SHARD_ENTRIES));
    const suffix = `-s${randomHex(8, repository.random)}-c${shards}`;
    const written: BlobId[] = [];
    for (const shard of inShards(index.entries())) {
      const body = encodeIndex(format.parameters.indexVersion, shard);
      const { id, bytes } = sealBlob(codec, prefix, suffix, body);
      await storage.putBlob(id, [bytes], protectedPut(format));
      written.push(id);
    }
    return written;
  } finally {
    index.close();
  }
}

function* inShards(entries: Iterable<IndexEntry>): Generator<IndexEntry[]> {
  let shard: IndexEntry[] = [];
  for (const entry of entries) {
    shard.push(entry);
    if (shard.length === SHARD_ENTRIES) {
      yield shard;
      shard = [];
    }
  }
  if (shard.length > 0) yield shard;
}

function countOf(entries: Iterable<IndexEntry>): number {
  let count = 0;
  for (const entry of entries) if (entry.contentId) count++;
  return count;
}

const maxOf = (times: readonly Nanoseconds[]): Nanoseconds =>
  times.reduce((a, b) => (a > b ? a : b), 0n);
const minOf = (times: readonly Nanoseconds[]): Nanoseconds =>
  times.reduce((a, b) => (a < b ? a : b), maxOf(times));
