import { CodedError, lookup, SECOND_NS } from '../../base/index.ts';
import type { BlobId, BlobMetadata, BlobStorage } from '../../blob/index.ts';
import type { SignalOptions } from './index-store.ts';

/** What the `x*` blobs say at one moment (Kopia: internal/epoch/epoch_manager.go). */
export interface EpochState {
  readonly writeEpoch: number;
  readonly watermarkSeconds: number;
  /** `xe` and `xw` blobs, for clean-up. */
  readonly markers: readonly BlobMetadata[];
  readonly watermarks: readonly BlobMetadata[];
  /** The chain of range compactions from epoch 0 on. */
  readonly ranges: readonly RangeSet[];
  /** Complete single-epoch compactions by epoch. */
  readonly compacted: ReadonlyMap<number, readonly BlobMetadata[]>;
  /** What writers put, by epoch. */
  readonly written: ReadonlyMap<number, readonly BlobMetadata[]>;
  /** All index blobs. */
  readonly indexes: readonly BlobMetadata[];
  /** Compactions that lack some of their blobs: unfinished, or lost in part. */
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
 * Names of index blobs; Kopia's `index recover` leaves the session out. Sync programs leave copies
 * beside them, such as `….sync-conflict-20260101-…`, and these may be cut short. A copy of one
 * shard must not pass for a whole compaction.
 */
const INDEX_NAME = /^x(n\d+|s\d+|r\d+_\d+)_[0-9a-f]+(-(s[0-9a-z]*)?(-c\d+)?)?$/;
/**
 * Higher numbers name no epoch and are ignored: epochs of 10 minutes, the shortest that Kopia
 * allows, get there in 190 years, and Kopia itself runs out of memory before. Names are not
 * authenticated: whoever may write to the bucket can make one up.
 */
const EPOCH_MAX = 10_000_000;
/** A watermark is older than its blob, as far as the clocks of writer and storage agree. */
const WATERMARK_AHEAD_NS_MAX = 3600n * SECOND_NS;

export const epochMarkerId = (epoch: number): string => `xe${epoch}`;
export const epochPrefix = (epoch: number): string => `xn${epoch}_`;

/** The last epoch that an index blob is about; -1 where its name tells none. */
export const lastEpochOf = (id: BlobId): number =>
  [WRITTEN, SINGLE, RANGE]
    .map((kind) => numbersOf(id, kind))
    .find(Boolean)
    ?.at(-1) ?? -1;

/**
 * The first complete group of blobs named `<any>-s<set>-c<count>`; a name without that form is
 * complete alone.
 */
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

/** The epochs that a name tells; undefined where it tells none. */
function numbersOf(id: BlobId, pattern: RegExp): number[] | undefined {
  const numbers = pattern.exec(id)?.slice(1).map(Number);
  return numbers?.every((number) => number <= EPOCH_MAX) === true ? numbers : undefined;
}

const epochOf = (id: BlobId, pattern: RegExp): number => numbersOf(id, pattern)?.[0] ?? -1;

/**
 * Unix seconds of a watermark; 0 for one of the future, which would hide what was deleted a moment
 * ago.
 */
function watermarkOf({ id, timestampNs }: BlobMetadata): number {
  const seconds = Number(WATERMARK.exec(id)?.[1] ?? 0);
  const latest = Number((timestampNs + WATERMARK_AHEAD_NS_MAX) / SECOND_NS);
  return seconds <= latest ? seconds : 0;
}

/**
 * Lists all of it at once, where Kopia lists each kind: buckets are paid by the request, and what
 * is seen is of one moment. What takes several pages loses nothing: compactions delete their inputs
 * hours later.
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
    // A range is made of settled epochs. One beyond them would hide what writers put now.
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

/**
 * Incomplete compactions whose inputs are deleted, so that entries are lost. A compaction that was
 * killed leaves its inputs.
 */
export const lostCompactions = (state: EpochState): RangeSet[] =>
  state.incomplete.filter(({ min, max }) => {
    const first = Math.max(min, lastRangeEpoch(state) + 1);
    if (first > Math.min(max, state.writeEpoch - 2)) return false;
    return !state.written.has(first) && !state.compacted.has(first);
  });

/** Index blobs that newer ones replaced, and parts of unfinished compactions. */
export function supersededIndexes(state: EpochState): BlobMetadata[] {
  const active = new Set(completeIndexSet(state));
  return state.indexes.filter((blob) => !active.has(blob));
}

/** The state as it would be without some index blobs. */
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

/** A range and those before it, down to epoch 0. */
interface Chain {
  readonly last: RangeSet;
  readonly length: number;
  readonly before: Chain | undefined;
}

/** Ranges that follow one another from epoch 0 to the highest possible, the fewest on ties. */
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
    // By their ends, the later ones are never lower.
    best = chain;
  }
  const chain: RangeSet[] = [];
  for (let at = best; at; at = at.before) chain.push(at.last);
  return chain.reverse();
}

/** Last epoch that the range chain covers, -1 for none. */
export const lastRangeEpoch = (state: EpochState): number => state.ranges.at(-1)?.max ?? -1;

/**
 * An epoch is started only when the one before it has index blobs, and those or their compaction
 * stay. A marker beyond a gap was made by nobody who follows the rules; compactions and deletions
 * that went by it would hide what writers put into the true epoch. Throws `EPOCH_IMPLAUSIBLE`.
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
 * The index blobs that together hold every entry. More are read than the rules of epochs ask for:
 * another writer may have advanced already, and a marker that was taken back may have led writers
 * to later epochs and compactions to earlier ones. What is read besides changes nothing, since the
 * newest entry of a content counts.
 */
export function completeIndexSet(state: EpochState): BlobMetadata[] {
  const blobs: BlobMetadata[] = [];
  let start = 0;
  for (const range of state.ranges) {
    // Kopia's condition: a range 0..0 alone is ignored in favour of epoch 0 itself.
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

/**
 * The compactions that are read in place of what writers put into an epoch: a range, and its own.
 */
export function compactionsOf(state: EpochState, epoch: number): (readonly BlobMetadata[])[] {
  // The range 0..0 alone is not read.
  const range = state.ranges.find(({ min, max }) => min <= epoch && epoch <= max && max > 0);
  const own = epoch <= state.writeEpoch - 2 ? state.compacted.get(epoch) : undefined;
  return [range?.blobs, own].filter((blobs) => blobs !== undefined);
}

/** The blobs of one epoch: its compaction once it is settled, else all that writers put. */
export function epochBlobs(state: EpochState, epoch: number): readonly BlobMetadata[] {
  const compacted = state.compacted.get(epoch);
  if (epoch <= state.writeEpoch - 2 && compacted) return compacted;
  return state.written.get(epoch) ?? [];
}
