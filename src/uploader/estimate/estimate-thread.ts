import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { assert } from '../../base/index.ts';
import { EstimatePace } from './estimate-pace.ts';
import { type CountPolicies, countSource } from './source-count.ts';

/** Task of the thread of a {@link SourceEstimate}. */
export interface EstimateTask {
  readonly path: string;
  readonly policies: CountPolicies;
}

/** The last report has the final state. */
export interface EstimateReport {
  readonly files: number;
  readonly bytes: number;
  readonly state: 'counting' | 'whole' | 'given-up';
}

/** The upload's threads have priority, also on the disk: ioprio follows nice. Our choice. */
const NICE = 10;
const REPORT_EVERY_MS = 200;

assert(parentPort, 'this file is the entry point of a worker thread');
const port = parentPort;
const report = (message: EstimateReport): void => {
  port.postMessage(message);
};
try {
  // On Linux this affects only the calling thread.
  setPriority(NICE);
} catch {
  // Continue with normal priority.
}
const { path, policies } = workerData as EstimateTask;
const pace = new EstimatePace(performance.now());
let reportedMs = 0;
let soFar = { files: 0, bytes: 0 };
const onCount = ({ files, bytes }: typeof soFar, entries: number): boolean => {
  const nowMs = performance.now();
  soFar = { files, bytes };
  if (nowMs - reportedMs >= REPORT_EVERY_MS) {
    reportedMs = nowMs;
    report({ ...soFar, state: 'counting' });
  }
  return pace.keepsUp(entries, nowMs);
};
const whole = await countSource(path, { policies, onCount }).catch(() => undefined);
report(whole ? { ...whole, state: 'whole' } : { ...soFar, state: 'given-up' });
