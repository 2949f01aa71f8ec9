import type { BlobId, BlobMetadata, BlobStorage } from '../../blob/index.ts';

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

export const epochMarkerId = (epoch: number): string => `xe${epoch}`;
export const epochPrefix = (epoch: number): string => `xn${epoch}_`;

/** The first complete group of blobs named `<any>-s<set>-c<count>`; a name without that form is complete alone. */
export function findCompleteSet(
  blobs: readonly BlobMetadata[],
): readonly BlobMetadata[] | undefined {
  const groups = new Map<string, BlobMetadata[]>();
  for (const blob of blobs) {
    const [, set, count] = blob.id.split('-');
    const sized = set?.startsWith('s') === true && /^c\d+$/.test(count ?? '');
    if (!sized || count === undefined) return [blob];
    const key = `${set}-${count}`;
    const group = groups.get(key) ?? [];
    groups.set(key, [...group, blob]);
    if (group.length + 1 === Number(count.slice(1))) return groups.get(key);
  }
  return undefined;
}

function numbersOf(id: BlobId, pattern: RegExp): number[] | undefined {
  const match = pattern.exec(id);
  return match ? match.slice(1).map(Number) : undefined;
}

/**
 * Lists all of it at once, where Kopia lists each kind: buckets are paid by the request, and what is seen is of
 * one moment. What takes several pages loses nothing: compactions delete their inputs hours later.
 */
export async function loadEpochState(storage: BlobStorage): Promise<EpochState> {
  const kinds: Record<string, BlobMetadata[]> = { xe: [], xw: [], xs: [], xr: [], xn: [] };
  for await (const blob of storage.listBlobs('x')) kinds[blob.id.slice(0, 2)]?.push(blob);
  const { xe: markers = [], xw: watermarks = [], xs = [], xr = [], xn = [] } = kinds;
  const max = (blobs: readonly BlobMetadata[], pattern: RegExp): number =>
    blobs.reduce((highest, { id }) => Math.max(highest, numbersOf(id, pattern)?.[0] ?? 0), 0);
  return {
    writeEpoch: max(markers, MARKER),
    watermarkSeconds: max(watermarks, WATERMARK),
    markers,
    watermarks,
    ranges: longestChain(groupRanges(xr)),
    compacted: groupSingles(xs),
    written: Map.groupBy(xn, ({ id }) => numbersOf(id, WRITTEN)?.[0] ?? -1),
  };
}

function groupSingles(blobs: readonly BlobMetadata[]): Map<number, readonly BlobMetadata[]> {
  const groups = Map.groupBy(blobs, ({ id }) => numbersOf(id, SINGLE)?.[0] ?? -1);
  const complete = new Map<number, readonly BlobMetadata[]>();
  for (const [epoch, group] of groups) {
    const set = findCompleteSet(group);
    if (set && epoch >= 0) complete.set(epoch, set);
  }
  return complete;
}

function groupRanges(blobs: readonly BlobMetadata[]): RangeSet[] {
  const groups = Map.groupBy(blobs, ({ id }) => RANGE.exec(id)?.slice(1).join('_') ?? '');
  return [...groups].flatMap(([key, group]) => {
    const [min, max] = key.split('_').map(Number);
    const set = findCompleteSet(group);
    return set && min !== undefined && max !== undefined ? [{ min, max, blobs: set }] : [];
  });
}

/** Ranges that follow one another from epoch 0 to the highest possible, the fewest on ties. */
export function longestChain(ranges: readonly RangeSet[]): RangeSet[] {
  const bestEndingAt = new Map<number, RangeSet[]>([[-1, []]]);
  for (const range of [...ranges].sort((a, b) => a.max - b.max || a.min - b.min)) {
    const before = bestEndingAt.get(range.min - 1);
    const present = bestEndingAt.get(range.max);
    if (before && (!present || before.length + 1 < present.length)) {
      bestEndingAt.set(range.max, [...before, range]);
    }
  }
  return bestEndingAt.get(Math.max(...bestEndingAt.keys())) ?? [];
}

/** Last epoch that the range chain covers, -1 for none. */
export const lastRangeEpoch = (state: EpochState): number => state.ranges.at(-1)?.max ?? -1;

/**
 * The index blobs that together hold every entry of epochs 0 to `writeEpoch` + 1; another writer may
 * have advanced already, so one epoch beyond is read.
 */
export function completeIndexSet(state: EpochState): BlobMetadata[] {
  const blobs: BlobMetadata[] = [];
  let start = 0;
  for (const range of state.ranges) {
    // Kopia's condition: a range 0..0 alone is ignored in favour of epoch 0 itself.
    if (range.max <= start) continue;
    blobs.push(...range.blobs);
    start = range.max + 1;
  }
  for (let epoch = start; epoch <= state.writeEpoch + 1; epoch++) {
    blobs.push(...epochBlobs(state, epoch));
  }
  return blobs;
}

/** The blobs of one epoch: its compaction once it is settled, else all that writers put. */
export function epochBlobs(state: EpochState, epoch: number): readonly BlobMetadata[] {
  const compacted = state.compacted.get(epoch);
  if (epoch <= state.writeEpoch - 2 && compacted) return compacted;
  return state.written.get(epoch) ?? [];
}
