import {
  CodedError,
  formatGoTime,
  mapLimited,
  type Nanoseconds,
  unixSeconds,
} from '../../base/index.ts';
import { blobId, type BlobMetadata, type BlobStorage } from '../../blob/index.ts';
import {
  assertEpochsFollow,
  epochBlobs,
  epochMarkerId,
  epochPrefix,
  type EpochState,
  lastRangeEpoch,
  loadEpochState,
} from '../content/epoch-state.ts';
import type { Repository } from '../repository.ts';
import { writeCompaction } from './compaction.ts';
import { checkSuperseded } from './hidden-indexes.ts';
import { type LateIndexes, NONE_LATE } from './late-indexes.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

const DELETES_AT_ONCE = 4;
/** Unreadable blobs named in the report. The log names all. Our choice. */
const NAMED_MAX = 10;

/** Merges the blobs of the oldest settled epoch without a compaction. */
export async function planSingleEpochCompaction({ repository }: TaskContext): Promise<TaskPlan> {
  const { storage } = repository;
  const state = await loadSoundState(storage);
  let epoch = lastRangeEpoch(state) + 1;
  while (state.compacted.has(epoch)) epoch++;
  const isSettled = epoch <= state.writeEpoch - 2;
  const blobs = isSettled ? epochBlobs(state, epoch) : [];
  const stats: TaskStats = {
    kind: 'compactSingleEpochStats',
    data: {
      supersededIndexBlobCount: blobs.length,
      supersededIndexTotalSize: bytesOf(blobs),
      epoch,
    },
  };
  return {
    count: () => stats,
    apply: async () => {
      if (!isSettled) return stats;
      await assertSameInputs(storage, blobs, (again) => epochBlobs(again, epoch));
      await writeCompaction(repository, `xs${epoch}_`, blobs);
      return stats;
    },
  };
}

/** Starts the next epoch if the current epoch is old and large enough. */
export async function planEpochAdvance({ repository }: TaskContext): Promise<TaskPlan> {
  const { storage, format } = repository;
  const parameters = format.parameters.epochParameters;
  const { writeEpoch, written } = await loadSoundState(storage);
  const blobs = written.get(writeEpoch) ?? [];
  const times = blobs.map(({ timestampNs }) => timestampNs);
  const spanNs = times.length === 0 ? 0n : maxOf(times) - minOf(times);
  const isDue =
    blobs.length > 0 &&
    spanNs >= BigInt(parameters.MinEpochDuration) &&
    (blobs.length >= parameters.EpochAdvanceOnCountThreshold ||
      bytesOf(blobs) >= parameters.EpochAdvanceOnTotalSizeBytesThreshold);
  const stats = (currentEpoch: number): TaskStats => ({
    kind: 'advanceEpochStats',
    data: { currentEpoch, wasAdvanced: currentEpoch !== writeEpoch },
  });
  return {
    count: () => stats(writeEpoch),
    apply: async () => {
      if (!isDue) return stats(writeEpoch);
      await storage.putBlob(blobId(epochMarkerId(writeEpoch + 1)), [Buffer.from('epoch-marker')]);
      return stats(writeEpoch + 1);
    },
  };
}

/** Merges a long run of settled epochs into one set. */
export async function planRangeCompaction({
  repository,
}: TaskContext): Promise<TaskPlan | undefined> {
  const { storage, format } = repository;
  const state = await loadSoundState(storage);
  const first = lastRangeEpoch(state) + 1;
  const last = state.writeEpoch - 2;
  const { FullCheckpointFrequency } = format.parameters.epochParameters;
  if (last - first < FullCheckpointFrequency) return undefined;
  const inputsOf = (of: EpochState): BlobMetadata[] => {
    const epochs = Array.from({ length: last - first + 1 }, (_, at) => first + at);
    return epochs.flatMap((epoch) => epochBlobs(of, epoch));
  };
  const stats: TaskStats = {
    kind: 'generateRangeCheckpointStats',
    data: { rangeMinEpoch: first, rangeMaxEpoch: last },
  };
  return {
    count: () => stats,
    apply: async () => {
      const blobs = inputsOf(state);
      await assertSameInputs(storage, blobs, inputsOf);
      await writeCompaction(repository, `xr${first}_${last}_`, blobs);
      return stats;
    },
  };
}

/** Deletes epoch markers and watermarks that were replaced by newer ones. */
export async function planMarkerCleanup(context: TaskContext): Promise<TaskPlan> {
  const { storage } = context.repository;
  const state = await loadSoundState(storage);
  const cutoffNs = (await newestIndexNs(context.repository, state)) - safetyMarginNs(context);
  const markers = state.markers.filter(({ id }) => Number(id.slice(2)) < state.writeEpoch - 1);
  const watermarks = state.watermarks.filter(
    ({ id, timestampNs }) =>
      Number(id.slice(2)) !== state.watermarkSeconds && timestampNs < cutoffNs,
  );
  const stats: TaskStats = {
    kind: 'cleanupMarkersStats',
    data: {
      deletedEpochMarkerBlobCount: markers.length,
      deletedWatermarkBlobCount: watermarks.length,
    },
  };
  return {
    count: () => stats,
    apply: async () => {
      await deleteAll(context, [...markers, ...watermarks]);
      return stats;
    },
  };
}

/**
 * Deletes writers' index blobs if their epoch was compacted long enough ago. Late blobs stay until
 * the index has all their entries. Useless late blobs stay as long as a session may run. Unreadable
 * blobs stay too: readers do not need them, but nothing proves that the index has their entries.
 * They do not block other deletions.
 */
export async function planSupersededIndexDeletion(
  context: TaskContext,
  { adopted, spent }: LateIndexes = NONE_LATE,
): Promise<TaskPlan> {
  const { repository, safety, startNs } = context;
  const state = await loadSoundState(repository.storage);
  const cutoffNs = (await newestIndexNs(repository, state)) - safetyMarginNs(context);
  const doomed: BlobMetadata[] = [];
  for await (const blob of repository.storage.listBlobs('xn')) {
    const epoch = Number(/^xn(\d+)_/.exec(blob.id)?.[1] ?? Number.NaN);
    const compacted = epoch <= state.writeEpoch - 2 ? state.compacted.get(epoch) : undefined;
    const replacedNs = compacted && maxOf(compacted.map(({ timestampNs }) => timestampNs));
    if (replacedNs === undefined || replacedNs >= cutoffNs || adopted.has(blob.id)) continue;
    const isYoung = startNs - blob.timestampNs < safety.sessionExpirationAgeNs;
    if (!isYoung || !spent.has(blob.id)) doomed.push(blob);
  }
  const [useless, unproven] = [
    doomed.filter(({ id }) => spent.has(id)),
    doomed.filter(({ id }) => !spent.has(id)),
  ];
  const stats = (going: readonly BlobMetadata[], kept: readonly BlobMetadata[]): TaskStats => ({
    kind: 'cleanupSupersededIndexesStats',
    data: {
      maxReplacementTime: formatGoTime(cutoffNs > 0n ? cutoffNs : 0n),
      deletedBlobCount: going.length,
      deletedTotalSize: bytesOf(going),
      ...(kept.length > 0 && { unreadableBlobCount: kept.length, unreadableBlobs: nameSome(kept) }),
    },
  });
  return {
    count: () => stats(doomed, []),
    apply: async () => {
      const { proven, unreadable } = await checkSuperseded(context, state, unproven);
      for (const { id } of unreadable) {
        const text = 'keeping a superseded index blob that cannot be read';
        context.logger.warn({ blobId: id }, text);
      }
      const going = [...useless, ...proven];
      await deleteAll(context, going);
      return stats(going, unreadable);
    },
  };
}

/** Hides entries deleted up to `untilNs`. The watermark never moves back. */
export async function planWatermark(
  { repository }: TaskContext,
  untilNs: Nanoseconds,
): Promise<TaskPlan | undefined> {
  const { storage } = repository;
  const { watermarkSeconds } = await loadEpochState(storage);
  const seconds = unixSeconds(untilNs);
  if (seconds < watermarkSeconds || seconds <= 0) return undefined;
  return {
    count: () => undefined,
    apply: async () => {
      await storage.putBlob(blobId(`xw${seconds}`), [Buffer.from('deletion-watermark')]);
      return undefined;
    },
  };
}

/** The epoch state, checked against its index blobs. Throws `EPOCH_IMPLAUSIBLE`. */
async function loadSoundState(storage: BlobStorage): Promise<EpochState> {
  const state = await loadEpochState(storage);
  assertEpochsFollow(state);
  return state;
}

/**
 * Checks that a second listing has the same inputs, because a compaction hides all entries it
 * lacks. Throws `BAD_LISTING`.
 */
async function assertSameInputs(
  storage: BlobStorage,
  blobs: readonly BlobMetadata[],
  inputsOf: (state: EpochState) => readonly BlobMetadata[],
): Promise<void> {
  const again = new Set(inputsOf(await loadSoundState(storage)).map(({ id }) => id));
  if (again.size === blobs.length && blobs.every(({ id }) => again.has(id))) return;
  const text = `two listings of the index blobs in ${storage.displayName} differ; nothing was compacted`;
  throw new CodedError('BAD_LISTING', text, { retry: 'backoff' });
}

/** The time of the storage's newest index blob. 0 if there is none: then no blob is old. */
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
  { repository, signal }: TaskContext,
  blobs: readonly BlobMetadata[],
): Promise<void> {
  await mapLimited(blobs, DELETES_AT_ONCE, ({ id }) => {
    signal.throwIfAborted();
    return repository.storage.deleteBlob(id);
  });
}

function nameSome(blobs: readonly BlobMetadata[]): string {
  const names = blobs.slice(0, NAMED_MAX).map(({ id }) => id);
  return blobs.length > NAMED_MAX ? `${names.join(' ')} ...` : names.join(' ');
}

const bytesOf = (blobs: readonly BlobMetadata[]): number =>
  blobs.reduce((sum, { lengthBytes }) => sum + lengthBytes, 0);
const maxOf = (times: readonly Nanoseconds[]): Nanoseconds =>
  times.reduce((a, b) => (a > b ? a : b), 0n);
const minOf = (times: readonly Nanoseconds[]): Nanoseconds =>
  times.reduce((a, b) => (a < b ? a : b), maxOf(times));
