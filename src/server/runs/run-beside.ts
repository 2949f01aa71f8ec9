import { CanceledError, isCode } from '../../base/index.ts';

/** A run that goes on beside its controller. */
export interface RunBeside {
  /** Somebody has canceled or deleted what it is about. May be repeated. */
  readonly cancel: () => void;
  /** Resolves when it has ended in any way. */
  readonly done: Promise<void>;
}

export interface RunBesideOptions {
  /**
   * Its signal says `CANCELED`, with `by: 'user'`, or with `by: 'shutdown'` where another server
   * goes on.
   */
  readonly make: (signal: AbortSignal) => Promise<void>;
  /** It was canceled before: the signal says so from the beginning. */
  readonly isCanceled?: boolean;
  /** Aborted when this process's turn ends. */
  readonly leaving: AbortSignal;
  /** With what `make` has thrown, unless another server goes on. */
  readonly onFailed: (error: unknown) => void;
  /** In any way, also when the turn ends. */
  readonly onOver: () => void;
}

/**
 * Begins a run of a Backup or Restore, which goes on until its object has its next phase. Whatever
 * ends this process's turn, another one goes on with it.
 */
export function runBeside(options: RunBesideOptions): RunBeside {
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
