/** Samples closer than this are merged. */
const SPACING_MS = 200;

/** The current rate of a growing value, over the last seconds instead of since the start. */
export class RecentRate {
  readonly #windowMs: number;
  #samples: { readonly atMs: number; readonly value: number }[] = [];

  constructor(windowMs: number) {
    this.#windowMs = windowMs;
  }

  add(value: number, atMs: number): void {
    const last = this.#samples.at(-1);
    const before = this.#samples.at(-2);
    // Replacing the last sample keeps the newest value without using more memory.
    if (last && before && last.atMs - before.atMs < SPACING_MS) this.#samples.pop();
    this.#samples.push({ atMs, value });
    // The newest sample older than the window stays, so the rate covers at least the window.
    const oldest = atMs - this.#windowMs;
    const keep = this.#samples.findLastIndex(({ atMs: at }) => at <= oldest);
    if (keep > 0) this.#samples = this.#samples.slice(keep);
  }

  /** The time between the first and last sample. */
  get spanMs(): number {
    const [first] = this.#samples;
    const last = this.#samples.at(-1);
    return first && last ? last.atMs - first.atMs : 0;
  }

  get perSecond(): number {
    const [first] = this.#samples;
    const last = this.#samples.at(-1);
    const spanMs = this.spanMs;
    if (!first || !last || spanMs <= 0) return 0;
    return Math.max(0, ((last.value - first.value) * 1000) / spanMs);
  }
}
