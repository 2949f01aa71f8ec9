import { CanceledError, isCode, messageOf } from '../../base/index.ts';
import { keyOf } from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import type { Run, RunKind } from './run-kind.ts';
import type { RunsView } from './watched-runs.ts';

export interface ActiveRunsOptions<T extends Run> {
  readonly kind: RunKind<T>;
  readonly lead: Lead;
  readonly view: RunsView<T>;
}

export interface BegunRun {
  /**
   * The reason of the signal is `CANCELED` with `by: 'user'`, or `by: 'shutdown'` if another server
   * continues.
   */
  readonly make: (signal: AbortSignal) => Promise<void>;
  /** The object was canceled before the run: the signal is aborted from the start. */
  readonly isCanceled?: boolean;
  /** Gets the error of `make`, unless another server continues the run. */
  readonly onFailed: (error: unknown) => void;
  /** Also called when this process stops leading. */
  readonly onOver: () => void;
}

interface Task {
  readonly key: string;
  readonly abort: AbortController;
  /** Resolves when the run has ended, also after an error. */
  readonly done: Promise<void>;
}

/** Our choice: short, because a later update has newer progress. */
const PROGRESS_PATIENCE_MS = 10_000;

/** The runs of one kind in this process. The controllers do not wait for them. */
export class ActiveRuns<T extends Run> {
  readonly #options: ActiveRunsOptions<T>;
  /** Keys are UIDs. */
  readonly #tasks = new Map<string, Task>();
  /** UIDs of objects that have run here. The watch may still show their old phase. */
  readonly #hadRun = new Set<string>();

  constructor(options: ActiveRunsOptions<T>) {
    this.#options = options;
  }

  /** Whether an object with this `namespace/name` runs here. */
  hasKey(key: string): boolean {
    return [...this.#tasks.values()].some((task) => task.key === key);
  }

  has(uid: string): boolean {
    return this.#tasks.has(uid);
  }

  hasHadRun(uid: string): boolean {
    return this.#hadRun.has(uid);
  }

  noteHadRun(uid: string): void {
    this.#hadRun.add(uid);
  }

  forget(uid: string): void {
    this.#hadRun.delete(uid);
  }

  /**
   * Cancels a run because a user has canceled or deleted its object. May be repeated. Returns false
   * if it does not run here.
   */
  cancel(uid: string): boolean {
    const task = this.#tasks.get(uid);
    task?.abort.abort(new CanceledError('user'));
    return task !== undefined;
  }

  /** Starts a run. If this process stops leading, another one continues it. */
  begin(object: T, { make, isCanceled = false, onFailed, onOver }: BegunRun): void {
    const { signal: leaving } = this.#options.lead;
    const { uid } = object.metadata;
    const abort = new AbortController();
    const leave = (): void => {
      abort.abort(new CanceledError('shutdown'));
    };
    leaving.addEventListener('abort', leave, { once: true });
    if (leaving.aborted) leave();
    if (isCanceled) abort.abort(new CanceledError('user'));
    const done = make(abort.signal)
      .catch((error: unknown) => {
        if (!leaving.aborted && !isCode(error, 'LEADERSHIP_LOST')) onFailed(error);
      })
      .finally(() => {
        leaving.removeEventListener('abort', leave);
        this.#tasks.delete(uid);
        onOver();
      });
    this.#tasks.set(uid, { key: keyOf(object.metadata), abort, done });
  }

  /** Resolves when no run is left. */
  async settle(): Promise<void> {
    await Promise.all([...this.#tasks.values()].map(({ done }) => done));
  }

  /** Writes the progress with few retries, because a later update replaces it. */
  async tell(object: T, progress: object): Promise<void> {
    const { view, kind, lead } = this.#options;
    try {
      await view.insist(object, { status: { progress } }, PROGRESS_PATIENCE_MS);
    } catch (error) {
      if (!isCode(error, 'STILL_AWAY')) throw error;
      const fields = { [kind.word]: object.metadata.name, error: messageOf(error) };
      lead.logger.warn(fields, `the progress of a ${kind.word} could not be written`);
    }
  }
}
