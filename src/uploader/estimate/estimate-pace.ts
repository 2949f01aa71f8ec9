/** A slower count slows the upload down too. Our choice: local disks are 50 times as fast. */
const ENTRIES_PER_SECOND_MIN = 1000;
const WINDOW_MS = 3000;

/** Decides whether a count is fast enough to be worth its reads. */
export class EstimatePace {
  #windowStartMs: number;
  #entriesBefore = 0;

  constructor(nowMs: number) {
    this.#windowStartMs = nowMs;
  }

  /** Call it with the number of entries so far. Returns false once a whole window was too slow. */
  keepsUp(entries: number, nowMs: number): boolean {
    const passedMs = nowMs - this.#windowStartMs;
    if (passedMs < WINDOW_MS) return true;
    const isFast = ((entries - this.#entriesBefore) * 1000) / passedMs >= ENTRIES_PER_SECOND_MIN;
    this.#windowStartMs = nowMs;
    this.#entriesBefore = entries;
    return isFast;
  }
}
