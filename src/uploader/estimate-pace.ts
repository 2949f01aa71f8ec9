/**
 * A count slower than this waits for its storage, and the upload waits with it. Our choice: local
 * disks do 50 times as much.
 */
const ENTRIES_PER_SECOND_MIN = 1000;
const WINDOW_MS = 3000;

/** Says whether a count goes fast enough to be worth its reads. */
export class EstimatePace {
  #windowStartMs: number;
  #entriesBefore = 0;

  constructor(nowMs: number) {
    this.#windowStartMs = nowMs;
  }

  /** Told of all entries so far; false once a whole window was too slow. */
  keepsUp(entries: number, nowMs: number): boolean {
    const passedMs = nowMs - this.#windowStartMs;
    if (passedMs < WINDOW_MS) return true;
    const isFast = ((entries - this.#entriesBefore) * 1000) / passedMs >= ENTRIES_PER_SECOND_MIN;
    this.#windowStartMs = nowMs;
    this.#entriesBefore = entries;
    return isFast;
  }
}
