import { RestoreArchive } from '../../../archive/index.ts';
import type { Operation, OperationMap } from '../../../item-operations/index.ts';
import type { KubeClient, Restore } from '../../../kube/index.ts';
import type { Buckets } from '../../backups/contract.ts';
import {
  intactResults,
  logText,
  mergedResults,
  resultsOf,
} from '../../operations/operation-results.ts';
import {
  type OperationsStep,
  operationsStep,
  type StepOptions,
} from '../../operations/operations-step.ts';
import { type MissingSources, operationsAbsent } from '../missing-sources.ts';
import type { FileWriters } from '../../runs/file-writers.ts';
import type { RestoreLocations } from '../locations.ts';
import { restoreChangeOf, uncountedLost } from '../lost-operations.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import { RESTORE_RUNS, subjectOf } from '../restore-kind.ts';

export interface RestoreStepOptions extends StepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly locations: RestoreLocations;
  readonly absences: MissingSources;
  readonly writers: FileWriters;
  /** Scratch space for the log while lines are added. */
  readonly scratch: string;
}

/**
 * Like {@link operationsStep}; stores failures in log and results before the Restore counts them.
 * Throws `OPERATIONS_ABSENT`, and stores nothing, while a missing operations file may return.
 */
export async function restoreOperationsStep(
  seen: Restore,
  options: RestoreStepOptions,
): Promise<OperationsStep> {
  const { map, absences, writers, signal } = options;
  const subject = subjectOf(seen);
  const isLost = async (): Promise<boolean> =>
    uncountedLost(seen, await map.get(subject, signal)) > 0;
  if (await isLost()) {
    await map.reload(subject, signal);
    const operations = await map.get(subject, signal);
    const lost = uncountedLost(seen, operations);
    const isWaited = lost > 0 && !(await absences.isOver(seen, signal));
    if (isWaited) throw operationsAbsent(lost, operations.length + lost);
  }
  return await operationsStep(seen, {
    ...options,
    kind: RESTORE_RUNS,
    changeOf: restoreChangeOf,
    store: async (restore, operations) => {
      await writers.run(seen.metadata.uid, () => store(restore, operations, options));
    },
  });
}

async function store(
  restore: Restore,
  operations: readonly Operation[],
  { buckets, locations, scratch, assertLeading, signal }: RestoreStepOptions,
): Promise<void> {
  const lines = restoreFailureLines(restore, operations);
  if (lines.length === 0) return;
  const { name } = restore.metadata;
  const location = await locations.of(restore, signal);
  await using opened = await buckets.open(location, signal, restore.metadata);
  const archive = new RestoreArchive(opened.bucket);
  const stored = await intactResults(() => archive.results(name, { signal }));
  assertLeading();
  const text = logText('restore', restore, lines);
  await archive.setLogTail(name, text, { directory: scratch, signal });
  assertLeading();
  const results = mergedResults(stored, resultsOf(lines, 'sentence'));
  await archive.put(name, { results }, { signal });
}
