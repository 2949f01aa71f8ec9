import { CodedError, lookup, SECOND_NS } from '../../base/index.ts';
import type { BlobId, BlobMetadata, BlobStorage } from '../../blob/index.ts';
import type { SignalOptions } from './index-store.ts';

/** The `x*` blobs at one moment (Kopia: internal/epoch/epoch_manager.go). */
export interface EpochState {
  readonly writeEpoch: number;
  readonly watermarkSeconds: number;
  /** `xe` and `xw` blobs, for cleanup. */
  readonly markers: readonly BlobMetadata[];
  readonly watermarks: readonly BlobMetadata[];
  /** The chain of range compactions from epoch 0. */
  readonly ranges: readonly RangeSet[];
  /** Complete single-epoch compactions, by epoch. */
  readonly compacted: ReadonlyMap<number, readonly BlobMetadata[]>;
  /** Index blobs put by writers, by epoch. */
  readonly written: ReadonlyMap<number, readonly BlobMetadata[]>;
  /** All index blobs. */
  readonly indexes: readonly BlobMetadata[];
  /** Compactions with missing blobs: unfinished, or partly lost. */
  readonly incomplete: readonly RangeSet[];
}

export interface RangeSet {
  readonly min: number;
  readonly max: number;
  readonly blobs: readonly BlobMetadata[];
}

const MARKER = /^xe(\d+)$/;
const WATERMARK = /^xw(\d+)$/;
const SINGLE = /^xs(\d+)_/;
const RANGE = /^xr(\d+)_(\d+)_/;
const WRITTEN = /^xn(\d+)_/;
/**
 * Names of index blobs. Kopia's `index recover` omits the session. Sync programs leave copies, such
 * as `….sync-conflict-20260101-…`, that may be cut short. A copy of one shard must not count as a
 * whole compaction.
 */
const INDEX_NAME = /^x(n\d+|s\d+|r\d+_\d+)_[0-9a-f]+(-(s[0-9a-z]*)?(-c\d+)?)?$/;
/**
 * Higher numbers are ignored. With Kopia's shortest epoch of 10 minutes, reaching this takes 190
 * years. Names are not authenticated: anyone who can write to the bucket can invent one.
 */
const EPOCH_MAX = 10_000_000;
/** A watermark is older than its blob, within the clock difference of writer and storage. */
const WATERMARK_AHEAD_NS_MAX = 3600n * SECOND_NS;

export const epochMarkerId = (epoch: number): string => `xe${epoch}`;
export const epochPrefix = (epoch: number): string => `xn${epoch}_`;

/** The last epoch covered by an index blob, or -1 if its name has no epoch. */
export const lastEpochOf = (id: BlobId): number =>
  [WRITTEN, SINGLE, RANGE]
    .map((kind) => numbersOf(id, kind))
    .find(Boolean)
    ?.at(-1) ?? -1;

/** The first complete group of blobs `<any>-s<set>-c<count>`. Other names are complete alone. */
export function findCompleteSet(
  blobs: readonly BlobMetadata[],
): readonly BlobMetadata[] | undefined {
  const groups = new Map<string, BlobMetadata[]>();
  for (const blob of blobs) {
    const [, set, count] = blob.id.split('-');
    const sized = set?.startsWith('s') === true && /^c\d+$/.test(count ?? '');
    if (!sized || count === undefined) return [blob];
    const key = `${set}-${count}`;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = []));
    group.push(blob);
    if (group.length === Number(count.slice(1))) return group;
  }
  return undefined;
}

/** The epoch numbers in a name, or undefined. */
function numbersOf(id: BlobId, pattern: RegExp): number[] | undefined {
  const numbers = pattern.exec(id)?.slice(1).map(Number);
  return numbers?.every((number) => number <= EPOCH_MAX) === true ? numbers : undefined;
}

const epochOf = (id: BlobId, pattern: RegExp): number => numbersOf(id, pattern)?.[0] ?? -1;

/** Unix seconds of a watermark. Future ones count as 0: they would hide fresh deletions. */
function watermarkOf({ id, timestampNs }: BlobMetadata): number {
  const seconds = Number(WATERMARK.exec(id)?.[1] ?? 0);
  const latest = Number((timestampNs + WATERMARK_AHEAD_NS_MAX) / SECOND_NS);
  return seconds <= latest ? seconds : 0;
}

/**
 * Loads the state with one listing, because requests cost money and one listing shows one moment.
 * (Kopia lists each kind.) A listing of several pages loses nothing: compactions delete their
 * inputs hours later.
 */
export async function loadEpochState(
  storage: BlobStorage,
  options: SignalOptions = {},
): Promise<EpochState> {
  return epochStateOf(await Array.fromAsync(storage.listBlobs('x', options)));
}

function epochStateOf(blobs: readonly BlobMetadata[]): EpochState {
  const kinds: Record<string, BlobMetadata[]> = { xe: [], xw: [], xs: [], xr: [], xn: [] };
  for (const blob of blobs) {
    const kind = blob.id.slice(0, 2);
    const isForeign = kind !== 'xe' && kind !== 'xw' && !INDEX_NAME.test(blob.id);
    if (!isForeign) lookup(kinds, kind)?.push(blob);
  }
  const { xe: markers = [], xw: watermarks = [], xs = [], xr = [], xn = [] } = kinds;
  const writeEpoch = markers.reduce((max, { id }) => Math.max(max, epochOf(id, MARKER)), 0);
  return {
    writeEpoch,
    watermarkSeconds: watermarks.reduce((max, blob) => Math.max(max, watermarkOf(blob)), 0),
    markers,
    watermarks,
    // Ranges consist of settled epochs. A later range would hide new writes.
    ranges: longestChain(groupRanges(xr).filter(({ max }) => max <= writeEpoch - 2)),
    compacted: groupSingles(xs),
    written: Map.groupBy(xn, ({ id }) => epochOf(id, WRITTEN)),
    indexes: [...xr, ...xs, ...xn],
    incomplete: [...incompleteSets(xs, SINGLE), ...incompleteSets(xr, RANGE)],
  };
}

function incompleteSets(blobs: readonly BlobMetadata[], kind: RegExp): RangeSet[] {
  const groups = Map.groupBy(blobs, ({ id }) => numbersOf(id, kind)?.join('_') ?? '');
  return [...groups].flatMap(([key, group]) => {
    if (key === '' || findCompleteSet(group)) return [];
    const [min = 0, max = min] = key.split('_').map(Number);
    return [{ min, max, blobs: group }];
  });
}

/** Incomplete compactions whose inputs are deleted. A killed compaction keeps its inputs. */
export const lostCompactions = (state: EpochState): RangeSet[] =>
  state.incomplete.filter(({ min, max }) => {
    const first = Math.max(min, lastRangeEpoch(state) + 1);
    if (first > Math.min(max, state.writeEpoch - 2)) return false;
    return !state.written.has(first) && !state.compacted.has(first);
  });

/** Index blobs replaced by newer ones, and parts of unfinished compactions. */
export function supersededIndexes(state: EpochState): BlobMetadata[] {
  const active = new Set(completeIndexSet(state));
  return state.indexes.filter((blob) => !active.has(blob));
}

/** The state without some index blobs. */
export function stateWithout(state: EpochState, ids: ReadonlySet<string>): EpochState {
  const { markers, watermarks, indexes } = state;
  return epochStateOf([...markers, ...watermarks, ...indexes.filter(({ id }) => !ids.has(id))]);
}

function groupSingles(blobs: readonly BlobMetadata[]): Map<number, readonly BlobMetadata[]> {
  const groups = Map.groupBy(blobs, ({ id }) => epochOf(id, SINGLE));
  const complete = new Map<number, readonly BlobMetadata[]>();
  for (const [epoch, group] of groups) {
    const set = findCompleteSet(group);
    if (set && epoch >= 0) complete.set(epoch, set);
  }
  return complete;
}

function groupRanges(blobs: readonly BlobMetadata[]): RangeSet[] {
  const groups = Map.groupBy(blobs, ({ id }) => numbersOf(id, RANGE)?.join('_') ?? '');
  return [...groups].flatMap(([key, group]) => {
    if (key === '') return [];
    const [min = 0, max = -1] = key.split('_').map(Number);
    const set = findCompleteSet(group);
    return set && min <= max ? [{ min, max, blobs: set }] : [];
  });
}

/** A range and the ranges before it, down to epoch 0. */
interface Chain {
  readonly last: RangeSet;
  readonly length: number;
  readonly before: Chain | undefined;
}

/**
 * Consecutive ranges from epoch 0 to the highest possible epoch. If several chains reach it, the
 * one with the fewest ranges.
 */
export function longestChain(ranges: readonly RangeSet[]): RangeSet[] {
  const bestEndingAt = new Map<number, Chain>();
  let best: Chain | undefined;
  for (const range of [...ranges].sort((a, b) => a.max - b.max || a.min - b.min)) {
    const before = bestEndingAt.get(range.min - 1);
    if (!before && range.min !== 0) continue;
    const chain = { last: range, length: (before?.length ?? 0) + 1, before };
    const present = bestEndingAt.get(range.max);
    if (present && present.length <= chain.length) continue;
    bestEndingAt.set(range.max, chain);
    // Ranges are sorted by their ends, so a later chain never ends lower.
    best = chain;
  }
  const chain: RangeSet[] = [];
  for (let at = best; at; at = at.before) chain.push(at.last);
  return chain.reverse();
}

/** Last epoch that the range chain covers, or -1. */
export const lastRangeEpoch = (state: EpochState): number => state.ranges.at(-1)?.max ?? -1;

/**
 * Throws `EPOCH_IMPLAUSIBLE` if an epoch before the current epoch lacks index blobs. An epoch
 * starts only after the epoch before it has index blobs. So a marker after a gap is forged, and
 * compacting or deleting by it would hide entries of the true epoch.
 */
export function assertEpochsFollow(state: EpochState): void {
  for (let epoch = lastRangeEpoch(state) + 1; epoch < state.writeEpoch; epoch++) {
    if (state.written.has(epoch) || state.compacted.has(epoch)) continue;
    const marker = epochMarkerId(state.writeEpoch);
    const text = `blob ${marker} says that epoch ${state.writeEpoch} has begun, but epoch ${epoch} has no index`;
    throw new CodedError(
      'EPOCH_IMPLAUSIBLE',
      `${text}; maintenance changed nothing. If none of your clients wrote that blob, delete it, and find out who else writes to this storage`,
      { facts: { blobId: marker } },
    );
  }
}

/**
 * The index blobs that together hold every entry. Includes more epochs than the rules require:
 * another writer may have advanced already. A deleted marker may also have led writers to later
 * epochs and compactions to earlier ones. The extra blobs are harmless, because the newest entry of
 * a content wins.
 */
export function completeIndexSet(state: EpochState): BlobMetadata[] {
  const blobs: BlobMetadata[] = [];
  let start = 0;
  for (const range of state.ranges) {
    // Kopia's condition: it ignores a range 0..0 and reads epoch 0 instead.
    if (range.max <= start) continue;
    for (const blob of range.blobs) blobs.push(blob);
    start = range.max + 1;
  }
  const epochs = new Set([...state.written.keys(), ...state.compacted.keys()]);
  for (const epoch of [...epochs].sort((a, b) => a - b)) {
    if (epoch < start) continue;
    for (const blob of epochBlobs(state, epoch)) blobs.push(blob);
    if (epoch <= state.writeEpoch - 2) continue;
    for (const blob of state.compacted.get(epoch) ?? []) blobs.push(blob);
  }
  return blobs;
}

/** The compactions read instead of an epoch's written blobs: its range, and its own compaction. */
export function compactionsOf(state: EpochState, epoch: number): (readonly BlobMetadata[])[] {
  // Kopia does not read a range 0..0.
  const range = state.ranges.find(({ min, max }) => min <= epoch && epoch <= max && max > 0);
  const own = epoch <= state.writeEpoch - 2 ? state.compacted.get(epoch) : undefined;
  return [range?.blobs, own].filter((blobs) => blobs !== undefined);
}

/** The blobs of one epoch: its compaction if the epoch is settled, otherwise all written blobs. */
export function epochBlobs(state: EpochState, epoch: number): readonly BlobMetadata[] {
  const compacted = state.compacted.get(epoch);
  if (epoch <= state.writeEpoch - 2 && compacted) return compacted;
  return state.written.get(epoch) ?? [];
}
