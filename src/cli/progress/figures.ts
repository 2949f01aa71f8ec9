import { RecentRate } from './recent-rate.ts';

/**
 * How much there is in all. `about`: a good guess. `atLeast`: so much was found, and there may be
 * far more.
 */
export interface Total {
  readonly value: number;
  readonly kind: 'exact' | 'about' | 'atLeast';
}

export interface Amount {
  readonly done: number;
  readonly total?: Total | undefined;
}

/** What a verb knows of its work at one moment. */
export interface Sample {
  /** What goes on when it is no plain moving of bytes: a task, or the last steps. */
  readonly phase?: string | undefined;
  readonly bytes?: Amount | undefined;
  readonly items: Amount & { readonly noun: string };
  /** Bytes really read or written, for the rate: nothing that was taken over as it was. */
  readonly movedBytes?: number | undefined;
  readonly errors: number;
}

/** A sample with what follows from those before it. */
export interface Figures extends Sample {
  readonly elapsedSeconds: number;
  readonly percent?: number | undefined;
  readonly bytesPerSecond?: number | undefined;
  readonly secondsLeft?: number | undefined;
}

/** The rate that is shown, and the steadier one that the end is foretold by. Our choice. */
const RATE_WINDOW_MS = 5000;
const END_WINDOW_MS = 30_000;
/** Before that there is no rate, and nothing is foretold. */
const RATE_SPAN_MS_MIN = 1000;
const END_SPAN_MS_MIN = 2000;
/** An end that is further away is a rate of nearly nothing. */
const END_SECONDS_MAX = 100 * 3600;

/** Follows one piece of work. */
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

/** A guess that was too low must not end below what is done already. */
const notBelowDone = ({ done, total }: Amount): Total | undefined =>
  total && { ...total, value: Math.max(total.value, done) };

/** Bytes where their total is known, else items. A change of either begins a new measure. */
function measureOf({ bytes, items, phase = '' }: Sample): { amount: Amount; name: string } {
  // Of volumes nobody has measured yet the items, which are done long before, say nothing.
  const isOfBytes =
    bytes !== undefined && (bytes.total?.value !== 0 || bytes.total.kind === 'atLeast');
  return isOfBytes
    ? { amount: bytes, name: `bytes ${phase}` }
    : { amount: items, name: `${items.noun} ${phase}` };
}

/** 100 only when that is certain. */
function percentOf({ done, total }: Amount): number | undefined {
  if (!total || total.kind === 'atLeast' || total.value === 0) return undefined;
  const percent = Math.floor((100 * done) / total.value);
  return total.kind === 'exact' ? percent : Math.min(99, percent);
}
