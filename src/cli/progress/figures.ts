/**
 * The total amount. `about`: a good estimate. `atLeast`: found so far, and there may be far more.
 */
export interface Total {
  readonly value: number;
  readonly kind: 'exact' | 'about' | 'atLeast';
}

export interface Amount {
  readonly done: number;
  readonly total?: Total | undefined;
}

/** The state of a verb's work at one moment. */
export interface Sample {
  /** The current task or final steps, if no bytes are being moved. */
  readonly phase?: string | undefined;
  readonly bytes?: Amount | undefined;
  readonly items: Amount & { readonly noun: string };
  /** Bytes read or written, for the rate. Reused data does not count. */
  readonly movedBytes?: number | undefined;
  readonly errors: number;
}

/** A sample with values derived from earlier samples. */
export interface Figures extends Sample {
  readonly elapsedSeconds: number;
  readonly percent?: number | undefined;
  readonly bytesPerSecond?: number | undefined;
  readonly secondsLeft?: number | undefined;
}

/** Windows for the shown rate, and for the steadier rate that predicts the end. Our choice. */
const RATE_WINDOW_MS = 5000;
const END_WINDOW_MS = 30_000;
/** Minimum time before a rate, and before a prediction. */
const RATE_SPAN_MS_MIN = 1000;
const END_SPAN_MS_MIN = 2000;
/** A prediction beyond this limit means that the rate is nearly 0. */
const END_SECONDS_MAX = 100 * 3600;

/** Derives the figures of one operation from its samples. */
export class ProgressTracker {
  readonly #startMs: number;
  readonly #moved = new RecentRate(RATE_WINDOW_MS);
  #done = new RecentRate(END_WINDOW_MS);
  #measured = '';

  constructor(startMs: number) {
    this.#startMs = startMs;
  }

  update(given: Sample, nowMs: number): Figures {
    const items = { ...given.items, total: notBelowDone(given.items) };
    const bytes = given.bytes && { ...given.bytes, total: notBelowDone(given.bytes) };
    const sample = { ...given, items, bytes };
    const { amount, name } = measureOf(sample);
    if (name !== this.#measured) this.#done = new RecentRate(END_WINDOW_MS);
    this.#measured = name;
    this.#done.add(amount.done, nowMs);
    if (sample.movedBytes !== undefined) this.#moved.add(sample.movedBytes, nowMs);
    return {
      ...sample,
      elapsedSeconds: (nowMs - this.#startMs) / 1000,
      percent: percentOf(amount),
      bytesPerSecond: this.#moved.spanMs < RATE_SPAN_MS_MIN ? undefined : this.#moved.perSecond,
      secondsLeft: this.#secondsLeft(amount),
    };
  }

  #secondsLeft({ done, total }: Amount): number | undefined {
    if (!total || total.kind === 'atLeast' || done >= total.value) return undefined;
    const { perSecond, spanMs } = this.#done;
    if (spanMs < END_SPAN_MS_MIN || perSecond <= 0) return undefined;
    const seconds = (total.value - done) / perSecond;
    return seconds < END_SECONDS_MAX ? seconds : undefined;
  }
}

/** The total must not be below the done amount, even for a low estimate. */
const notBelowDone = ({ done, total }: Amount): Total | undefined =>
  total && { ...total, value: Math.max(total.value, done) };

/** Bytes, or items if there are no bytes to measure. A switch restarts the measurement. */
function measureOf({ bytes, items, phase = '' }: Sample): { amount: Amount; name: string } {
  // Volumes without a measured size have a total of 0 bytes. Then items count.
  const isOfBytes =
    bytes !== undefined && (bytes.total?.value !== 0 || bytes.total.kind === 'atLeast');
  return isOfBytes
    ? { amount: bytes, name: `bytes ${phase}` }
    : { amount: items, name: `${items.noun} ${phase}` };
}

/** 100 only if the total is exact. */
function percentOf({ done, total }: Amount): number | undefined {
  if (!total || total.kind === 'atLeast' || total.value === 0) return undefined;
  const percent = Math.floor((100 * done) / total.value);
  return total.kind === 'exact' ? percent : Math.min(99, percent);
}

/** Samples closer than this are merged. */
const SPACING_MS = 200;

/** The current rate of a growing value, over the last seconds instead of since the start. */
class RecentRate {
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
