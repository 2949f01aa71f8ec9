import { asError, CodedError } from '../base/index.ts';

export interface Progress {
  readonly totalBytes: number;
  readonly doneBytes: number;
}

/**
 * What a move depends on right now, as far as it is known: the volume, the storage, or the volume's
 * last flush.
 */
export type WaitsFor = 'volume' | 'storage' | 'disk';

export interface Sample {
  readonly doneBytes: number;
  /** Undefined before it is known: nothing is reported then. */
  readonly totalBytes: number | undefined;
  /** What changes with every step of the move itself: bytes, entries, tasks of threads. */
  readonly moved: number;
  /**
   * Answers of the storage. A backup also asks by itself now and then, whatever its volume does.
   */
  readonly answers: number;
  readonly waitsFor: WaitsFor;
}

export interface ProgressOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  readonly progressIntervalMs: number;
  readonly stallMs: number;
  readonly graceMs?: number;
  /** For the message. */
  readonly path: string;
}

export interface ProgressWatch {
  /**
   * Runs the move with a signal that also ends it when it stalls. One that does not end then, since
   * a thread of it is blocked in the kernel, is left behind: the caller goes on with the error, and
   * has to end the process.
   */
  run<T>(task: (signal: AbortSignal) => Promise<T>): Promise<T>;
  /** Why the move was ended, when it stalled. */
  readonly stalled: Error | undefined;
  /** The last report: done is the total. */
  finish(totalBytes: number): void;
  stop(): void;
}

/**
 * Our choice: a flush of what was stored so far takes seconds, and each answer of the storage
 * starts it anew.
 */
const GRACE_MS = 30_000;
/**
 * A request has time limits and tries of its own. No pause between them ends later than 25 minutes
 * after the first, also when the service asks for long ones (base/retry.ts): it always ends before
 * this, and says what was wrong.
 */
const STORAGE_MS = 30 * 60_000;
/**
 * A disk writes back what it was given, and reports nothing until it is done: at 10 MB/s 36 GB in
 * an hour.
 */
const FLUSH_MS = 60 * 60_000;
/**
 * Answers of the storage are a sign of life too, since parts of a move consist of nothing else. A
 * backup looks at what others wrote every 15 minutes, and names what it has every 45: that alone
 * puts the end off no further. Our choice.
 */
const ANSWERS_ONLY_FACTOR = 2;

/**
 * Reports progress at a bounded rate, the first at once, never going back, and notices when nothing
 * moves any more.
 */
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
  /** As `idleMs`, whatever the storage answers; it stands still while the storage is asked. */
  let stillMs = 0;
  let isEnding = false;
  const intervalMs = Math.min(progressIntervalMs, stallMs, graceMs);
  let lookedMs = performance.now();
  const look = (): void => {
    const { doneBytes, totalBytes, moved, answers, waitsFor } = sample();
    const nowMs = performance.now();
    // While the process itself was stopped nothing could move: a long pause counts as a short one.
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
