import { Worker } from 'node:worker_threads';
import { descriptorsMax } from '../../base/index.ts';
import type { PolicyTree } from '../../snapshot/index.ts';
import type { EstimateReport, EstimateTask } from './estimate-thread.ts';

const ENTRY = new URL(
  import.meta.url.endsWith('.ts') ? './estimate-thread.ts' : './estimate-thread.js',
  import.meta.url,
);
/**
 * With fewer descriptors, the upload needs them all: a thread takes 4, and its directories up to
 * 16. Our choice.
 */
const DESCRIPTORS_MIN = 512;
/** The heap holds only names of waiting directories. */
const HEAP_MIB = 48;
const YOUNG_HEAP_MIB = 4;

/**
 * Counts files and bytes ahead of an upload, in a separate thread of low priority. So a slow
 * directory delays nothing else. Gives up if the storage is slow, or without descriptors or a
 * thread. Never throws.
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

  /** The counts so far; final if the state is `whole`. */
  get report(): EstimateReport {
    return this.#report;
  }

  #giveUp(): void {
    this.#report = { ...this.#report, state: 'given-up' };
  }

  /** Ends the thread. May be called at any time, and repeatedly. */
  stop(): void {
    if (this.#report.state === 'counting') this.#giveUp();
    // A thread blocked in the kernel keeps the process alive, as those of a pool do.
    this.#worker?.ref();
    void this.#worker?.terminate();
  }
}
