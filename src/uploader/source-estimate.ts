import { Worker } from 'node:worker_threads';
import { descriptorsMax } from '../base/index.ts';
import type { PolicyTree } from '../snapshot/index.ts';
import type { EstimateReport, EstimateTask } from './estimate-thread.ts';

const ENTRY = new URL(
  import.meta.url.endsWith('.ts') ? './estimate-thread.ts' : './estimate-thread.js',
  import.meta.url,
);
/**
 * With fewer, all of them are for the upload: a thread takes 4, and its directories up to 16. Our
 * choice.
 */
const DESCRIPTORS_MIN = 512;
/** It holds names of directories that wait, and no more. */
const HEAP_MIB = 48;
const YOUNG_HEAP_MIB = 4;

/**
 * Counts what an upload will store, ahead of it, in a thread of low priority that is not of the
 * pool: a slow directory keeps nobody else waiting. It gives up where the storage is slow, and
 * without a thread or descriptors for it. It never throws.
 */
export class SourceEstimate {
  #report: EstimateReport = { files: 0, bytes: 0, state: 'counting' };
  #worker: Worker | undefined;

  constructor(path: string, policies: PolicyTree, entry: URL = ENTRY) {
    const task: EstimateTask = { path, policies: policies.definitions };
    if (descriptorsMax() < DESCRIPTORS_MIN) {
      this.#giveUp();
      return;
    }
    try {
      this.#worker = new Worker(entry, {
        workerData: task,
        resourceLimits: {
          maxOldGenerationSizeMb: HEAP_MIB,
          maxYoungGenerationSizeMb: YOUNG_HEAP_MIB,
        },
      });
    } catch {
      this.#giveUp();
      return;
    }
    this.#worker.unref();
    this.#worker.on('message', (report: EstimateReport) => {
      if (this.#report.state === 'counting') this.#report = report;
    });
    this.#worker.on('error', () => {
      this.#giveUp();
    });
    this.#worker.on('exit', () => {
      this.#worker = undefined;
      if (this.#report.state === 'counting') this.#giveUp();
    });
  }

  /** What was counted so far; all of it once the state is `whole`. */
  get report(): EstimateReport {
    return this.#report;
  }

  #giveUp(): void {
    this.#report = { ...this.#report, state: 'given-up' };
  }

  /** Ends the thread. May be called at any time, and again. */
  stop(): void {
    if (this.#report.state === 'counting') this.#giveUp();
    // One that the kernel does not let go keeps the process until its end is forced, as those of
    // the pool do.
    this.#worker?.ref();
    void this.#worker?.terminate();
  }
}
