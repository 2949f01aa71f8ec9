import { CanceledError, isCode } from '../../base/index.ts';

/** A run that its controller does not wait for. */
export interface BackgroundRun {
  /** Cancels the run because a user has canceled or deleted its object. May be repeated. */
  readonly cancel: () => void;
  /** Resolves when the run has ended, also after an error. */
  readonly done: Promise<void>;
}

export interface BackgroundRunOptions {
  /**
   * The reason of the signal is `CANCELED` with `by: 'user'`, or `by: 'shutdown'` if another server
   * continues.
   */
  readonly make: (signal: AbortSignal) => Promise<void>;
  /** The object was canceled before the run: the signal is aborted from the start. */
  readonly isCanceled?: boolean;
  /** Aborted when this process stops leading. */
  readonly leaving: AbortSignal;
  /** Gets the error of `make`, unless another server continues the run. */
  readonly onFailed: (error: unknown) => void;
  /** Also called when this process stops leading. */
  readonly onOver: () => void;
}

/**
 * Starts a run that lasts until the next phase. If this process stops leading, another one
 * continues it.
 */
export function runInBackground(options: BackgroundRunOptions): BackgroundRun {
  const { make, isCanceled = false, leaving, onFailed, onOver } = options;
  const abort = new AbortController();
  const cancel = (): void => {
    abort.abort(new CanceledError('user'));
  };
  const leave = (): void => {
    abort.abort(new CanceledError('shutdown'));
  };
  leaving.addEventListener('abort', leave, { once: true });
  if (leaving.aborted) leave();
  if (isCanceled) cancel();
  const done = make(abort.signal)
    .catch((error: unknown) => {
      if (!leaving.aborted && !isCode(error, 'LEADERSHIP_LOST')) onFailed(error);
    })
    .finally(() => {
      leaving.removeEventListener('abort', leave);
      onOver();
    });
  return { cancel, done };
}
