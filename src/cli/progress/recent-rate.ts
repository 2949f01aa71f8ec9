/** Samples closer together than this become one. */
const SPACING_MS = 200;

/** How fast something grows now: over the last seconds, not since the start. */
export class RecentRate {
  readonly #windowMs: number;
  #samples: { readonly atMs: number; readonly value: number }[] = [];

  constructor(windowMs: number) {
    this.#windowMs = windowMs;
  }

  add(value: number, atMs: number): void {
    const last = this.#samples.at(-1);
    const before = this.#samples.at(-2);
    // Replacing the last one keeps the newest value without holding more.
    if (last && before && last.atMs - before.atMs < SPACING_MS) this.#samples.pop();
    this.#samples.push({ atMs, value });
    // One sample older than the window stays: the rate is over at least the window.
    const oldest = atMs - this.#windowMs;
    const keep = this.#samples.findLastIndex(({ atMs: at }) => at <= oldest);
    if (keep > 0) this.#samples = this.#samples.slice(keep);
  }

  /** How long the samples reach back. */
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
