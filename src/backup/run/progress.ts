import type { BackupLog } from '../results.ts';

export interface ProgressOptions<P> {
  readonly onProgress?: ((progress: P) => Promise<void>) | undefined;
  readonly progressMs?: number | undefined;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
}

/** Velero's patch interval. */
const PROGRESS_MS = 1000;

/** Reports progress at intervals, one report at a time. An error is a warning of the run. */
export class ProgressTeller<P> {
  readonly #options: ProgressOptions<P>;
  readonly #now: () => P;
  /** Owner of the status, such as `backup`. */
  readonly #what: string;
  #lastMs = -Infinity;
  #telling: Promise<void> = Promise.resolve();
  #isTelling = false;

  constructor(options: ProgressOptions<P>, now: () => P, what = 'backup') {
    this.#options = options;
    this.#now = now;
    this.#what = what;
  }

  changed(): void {
    const nowMs = performance.now();
    if (this.#isTelling || nowMs - this.#lastMs < (this.#options.progressMs ?? PROGRESS_MS)) return;
    this.#lastMs = nowMs;
    this.#isTelling = true;
    this.#telling = this.#tell(this.#now()).finally(() => (this.#isTelling = false));
  }

  /** Sends the final report after all others. */
  async end(progress: P): Promise<void> {
    await this.#telling;
    await this.#tell(progress);
  }

  async #tell(progress: P): Promise<void> {
    try {
      await this.#options.onProgress?.(progress);
    } catch (error) {
      if (this.#options.signal.aborted) return;
      const text = `Got error trying to update ${this.#what}'s status.progress`;
      this.#options.log.warn(text, { error });
    }
  }
}
