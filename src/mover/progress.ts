import { CodedError } from '../base/index.ts';

export interface Progress {
  readonly totalBytes: number;
  readonly doneBytes: number;
}

interface Sample extends Progress {
  /** Anything that moves while there is life: bytes stored, files made. */
  readonly movedBytes: number;
}

export interface ProgressOptions {
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
  readonly progressIntervalMs: number;
  readonly stallMs: number;
}

export interface ProgressWatch {
  /** Runs the move with a signal that also ends it when it stalls. */
  run<T>(task: (signal: AbortSignal) => Promise<T>): Promise<T>;
  /** The last report: done is the total. */
  finish(totalBytes: number): void;
  stop(): void;
}

/** Reports progress at a bounded rate, the first at once, never going back, and notices when nothing moves any more. */
export function watchProgress(options: ProgressOptions, sample: () => Sample): ProgressWatch {
  const { onProgress, progressIntervalMs, stallMs } = options;
  const stall = new AbortController();
  let done = 0;
  let seen = '';
  let movedMs = performance.now();
  const look = (): void => {
    const { doneBytes, totalBytes, movedBytes } = sample();
    done = Math.max(done, doneBytes);
    const now = `${doneBytes} ${movedBytes}`;
    if (now !== seen) movedMs = performance.now();
    seen = now;
    if (performance.now() - movedMs > stallMs) stall.abort(stalled(stallMs));
    else onProgress({ totalBytes: Math.max(totalBytes, done), doneBytes: done });
  };
  const timer = setInterval(look, Math.min(progressIntervalMs, stallMs));
  look();
  return {
    async run(task) {
      try {
        return await task(AbortSignal.any([options.signal, stall.signal]));
      } finally {
        // A stalled upload ends as one that was cut short, without an error of its own.
        if (stall.signal.aborted && !options.signal.aborted) stall.signal.throwIfAborted();
      }
    },
    finish(totalBytes) {
      onProgress({ totalBytes, doneBytes: totalBytes });
    },
    stop() {
      clearInterval(timer);
    },
  };
}

const stalled = (stallMs: number): CodedError =>
  new CodedError(
    'STALLED',
    `no byte was read or stored for ${Math.round(stallMs / 1000)} s: the volume or the storage hangs`,
  );
