import type { Repository } from '../../repository/index.ts';
import { loadPolicyTree, type SourceInfo } from '../../snapshot/index.ts';
import type { EstimateReport } from './estimate-thread.ts';
import type { UploadCounters } from '../progress.ts';
import { SourceEstimate } from './source-estimate.ts';

/** A shorter upload needs no estimate. Our choice. */
const AFTER_MS = 500;

export interface EstimateAheadOptions {
  readonly repository: Repository;
  readonly source: SourceInfo;
  readonly path: string;
  /** Counters of the upload. */
  readonly counters: UploadCounters;
}

/**
 * An estimate of a directory, which starts after a delay. The estimate never starts after `stop`,
 * after the upload has listed everything, or if memory is tight. Never throws.
 */
export class EstimateAhead {
  readonly #timer: NodeJS.Timeout;
  #isStopped = false;
  #estimate: SourceEstimate | undefined;

  constructor(options: EstimateAheadOptions, afterMs = AFTER_MS) {
    this.#timer = setTimeout(() => {
      // The upload itself reports unreadable policies.
      this.#start(options).catch(() => undefined);
    }, afterMs);
    this.#timer.unref();
  }

  async #start({ repository, source, path, counters }: EstimateAheadOptions): Promise<void> {
    if (counters.isListed || repository.dataPath?.isTight === true) return;
    const policies = await loadPolicyTree(repository, source);
    if (!this.#isStopped) this.#estimate = new SourceEstimate(path, policies);
  }

  /** Undefined before it has started. */
  get report(): EstimateReport | undefined {
    return this.#estimate?.report;
  }

  /** Ends its thread. May be called at any time, and repeatedly. */
  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#estimate?.stop();
  }
}
