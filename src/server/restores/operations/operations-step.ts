import { type Results, RestoreArchive } from '../../../archive/index.ts';
import { isCode } from '../../../base/index.ts';
import type { Operation, OperationMap } from '../../../item-operations/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import type { Restore } from '../../../restore/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import { logText, mergedResults, resultsOf } from '../../operations/failures.ts';
import {
  type OperationsStep,
  operationsStep,
  type StepOptions,
} from '../../operations/operations-step.ts';
import type { RestoreLocations } from '../locations.ts';
import { restoreChangeOf } from '../lost-operations.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import { FOLLOWED_RESTORES } from '../restore-kind.ts';

export interface RestoreStepOptions extends StepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  /** Room for the log of a restore while something is added to it. */
  readonly scratch: string;
}

/** One step of a Restore: what its operations failed with is in its log and its results before the Restore counts it. */
export const restoreOperationsStep = (
  seen: Restore,
  options: RestoreStepOptions,
): Promise<OperationsStep> =>
  operationsStep(seen, {
    ...options,
    kind: FOLLOWED_RESTORES,
    changeOf: restoreChangeOf,
    store: (restore, operations) => store(restore, operations, options),
  });

async function store(
  restore: Restore,
  operations: readonly Operation[],
  { buckets, locations, scratch, assertLeading, signal }: RestoreStepOptions,
): Promise<void> {
  const lines = restoreFailureLines(restore, operations);
  if (lines.length === 0) return;
  const { name } = restore.metadata;
  await using opened = await buckets.open(await locations.of(restore, signal), signal);
  const archive = new RestoreArchive(opened.bucket);
  const stored = await storedResults(archive, name, signal);
  assertLeading();
  const text = logText('restore', restore, lines);
  await archive.setLogTail(name, text, { directory: scratch, signal });
  assertLeading();
  const results = mergedResults(stored, resultsOf(lines, 'sentence'));
  await archive.put(name, { results }, { signal });
}

/** Nothing where the file cannot be read: what is said now is worth more than what somebody has cut off. */
export async function storedResults(
  archive: RestoreArchive,
  name: string,
  signal: AbortSignal,
): Promise<Results> {
  try {
    return await archive.results(name, { signal });
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE')) return {};
    throw error;
  }
}
