import type { MovementDescription } from './status.ts';

/** The rate of a volume in bytes per second; undefined if unknown. */
export type RateOf = (row: MovementDescription) => number | undefined;

/** Undefined if nothing moves, or the total is unknown. */
export function secondsLeft(
  { bytesDone, totalBytes }: MovementDescription,
  rate: number | undefined,
): number | undefined {
  if (rate === undefined || rate <= 0 || totalBytes <= bytesDone) return undefined;
  return (totalBytes - bytesDone) / rate;
}

/** Since the start of the move. */
export function averageRate({ bytesDone, movingSeconds }: MovementDescription): number | undefined {
  if (movingSeconds === undefined || movingSeconds < 1) return undefined;
  return bytesDone / movingSeconds;
}

const WINDOW_MS = 60_000;
const SAMPLES_MAX = 64;

/** Rates over the last minute, for the volumes that are moving now. */
export class RecentRates {
  readonly #samples = new Map<string, { atMs: number; bytes: number }[]>();

  get size(): number {
    return this.#samples.size;
  }

  /** Takes all current rows, and forgets volumes that are missing or not moving. */
  see(rows: readonly MovementDescription[], nowMs: number): void {
    const moving = new Set<string>();
    for (const { uid, movingSeconds, bytesDone } of rows) {
      if (movingSeconds === undefined) continue;
      moving.add(uid);
      const samples = this.#samples.get(uid) ?? [];
      this.#samples.set(uid, samples);
      samples.push({ atMs: nowMs, bytes: bytesDone });
      while (samples.length > SAMPLES_MAX || nowMs - (samples[0]?.atMs ?? nowMs) > WINDOW_MS)
        samples.shift();
    }
    for (const uid of this.#samples.keys()) if (!moving.has(uid)) this.#samples.delete(uid);
  }

  /** The average since the start is used for the first seconds. */
  readonly of: RateOf = (row) => {
    const samples = this.#samples.get(row.uid) ?? [];
    const [first] = samples;
    const last = samples.at(-1);
    if (!first || !last || last.atMs - first.atMs < 5000) return averageRate(row);
    return (Math.max(0, last.bytes - first.bytes) * 1000) / (last.atMs - first.atMs);
  };
}
