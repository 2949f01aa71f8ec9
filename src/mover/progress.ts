import { asError, CodedError } from '../base/index.ts';

export interface Progress {
  readonly totalBytes: number;
  readonly doneBytes: number;
}

/** The thing that a move depends on now: the volume, the storage, or the volume's last flush. */
export type WaitsFor = 'volume' | 'storage' | 'disk';

export interface Sample {
  readonly doneBytes: number;
  /** Undefined until it is known. No progress is reported before. */
  readonly totalBytes: number | undefined;
  /** Changes with every step of the move itself: bytes, entries, tasks of threads. */
  readonly moved: number;
  /** Answers of the storage. A backup sends some requests even if its volume hangs. */
  readonly answers: number;
  readonly waitsFor: WaitsFor;
}

export interface ProgressOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  readonly progressIntervalMs: number;
  readonly stallMs: number;
  readonly graceMs?: number;
  readonly path: string;
}

export interface ProgressWatch {
  /**
   * Runs the move with a signal that also aborts it when it stalls. A move with a thread blocked in
   * the kernel does not end. `run` then throws, and the caller has to end the process.
   */
  run<T>(task: (signal: AbortSignal) => Promise<T>): Promise<T>;
  /** The reason, if the move was ended because it stalled. */
  readonly stalled: Error | undefined;
  /** Sends the last report: done is the total. */
  finish(totalBytes: number): void;
  stop(): void;
}

/** Our choice: a flush takes seconds. Each answer of the storage restarts the time. */
const GRACE_MS = 30_000;
/**
 * A request has its own time limits and retries. The last pause between retries ends within 25
 * minutes, even if the service asks for long pauses (base/retry.ts). So the request fails first,
 * with its reason.
 */
const STORAGE_MS = 30 * 60_000;
/** A disk reports nothing while it writes back its cache: 36 GB take an hour at 10 MB/s. */
const FLUSH_MS = 60 * 60_000;
/**
 * Answers of the storage are a sign of life too: parts of a move consist only of requests. A backup
 * refreshes its index every 15 minutes and saves a checkpoint every 45. These requests delay the
 * end only up to this factor. Our choice.
 */
const ANSWERS_ONLY_FACTOR = 2;

/** Reports progress at a bounded rate, at once and never going back. Detects a stalled move. */
export function watchProgress(options: ProgressOptions, sample: () => Sample): ProgressWatch {
  const { onProgress, progressIntervalMs, stallMs, graceMs = GRACE_MS, signal } = options;
  const limits = {
    volume: stallMs,
    storage: Math.max(stallMs, STORAGE_MS),
    disk: Math.max(stallMs, FLUSH_MS),
  };
  const stall = new AbortController();
  const either = AbortSignal.any([signal, stall.signal]);
  const leave = Promise.withResolvers<never>();
  leave.promise.catch(() => undefined);
  let done = 0;
  let seen = Number.NaN;
  let seenAnswers = Number.NaN;
  let idleMs = 0;
  /** Like `idleMs`, but ignores answers of the storage, and stops during requests. */
  let stillMs = 0;
  let isEnding = false;
  const intervalMs = Math.min(progressIntervalMs, stallMs, graceMs);
  let lookedMs = performance.now();
  const look = (): void => {
    const { doneBytes, totalBytes, moved, answers, waitsFor } = sample();
    const nowMs = performance.now();
    // A stopped process moves nothing, so a long pause counts as a short one.
    const passedMs = Math.min(nowMs - lookedMs, 2 * intervalMs);
    idleMs = moved === seen && answers === seenAnswers ? idleMs + passedMs : 0;
    if (moved !== seen) stillMs = 0;
    else if (waitsFor === 'volume') stillMs += passedMs;
    lookedMs = nowMs;
    seen = moved;
    seenAnswers = answers;
    if (!isEnding && either.aborted) {
      isEnding = true;
      idleMs = 0;
    }
    if (isEnding) {
      if (idleMs >= graceMs) leave.reject(asError(either.reason));
      return;
    }
    if (idleMs > limits[waitsFor]) {
      stall.abort(stalledError(idleMs, waitsFor, options.path));
      return;
    }
    if (waitsFor === 'volume' && stillMs > ANSWERS_ONLY_FACTOR * limits.volume) {
      stall.abort(stalledError(stillMs, waitsFor, options.path));
      return;
    }
    done = Math.max(done, doneBytes);
    if (totalBytes !== undefined) {
      onProgress({ totalBytes: Math.max(totalBytes, done), doneBytes: done });
    }
  };
  const timer = setInterval(look, intervalMs);
  look();
  const stalled = (): Error | undefined =>
    stall.signal.aborted && !signal.aborted ? asError(stall.signal.reason) : undefined;
  return {
    async run(task) {
      const running = task(either);
      running.catch(() => undefined);
      try {
        return await Promise.race([running, leave.promise]);
      } catch (error) {
        throw stalled() ?? error;
      }
    },
    get stalled() {
      return stalled();
    },
    finish(totalBytes) {
      onProgress({ totalBytes, doneBytes: totalBytes });
    },
    stop() {
      clearInterval(timer);
    },
  };
}

function stalledError(idleMs: number, waitsFor: WaitsFor, path: string): CodedError {
  const causes = {
    volume: `the volume at ${path} hangs; check that its storage responds`,
    storage: "the repository's storage does not respond; check that it can be reached",
    disk: `everything is written, but the volume at ${path} does not flush it to disk; check that its storage responds`,
  };
  const seconds = Math.round(idleMs / 1000);
  const text = `nothing has moved for ${seconds} s: ${causes[waitsFor]}, then try again`;
  return new CodedError('STALLED', text, { facts: { waitsFor } });
}
