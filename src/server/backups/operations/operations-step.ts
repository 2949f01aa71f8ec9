import { isCode } from '../../../base/index.ts';
import { BackupArchive, type Results } from '../../../archive/index.ts';
import { countsOf, type Operation, type OperationMap } from '../../../item-operations/index.ts';
import { type Backup, isWaiting, type KubeClient } from '../../../kube/index.ts';
import {
  failureLines,
  failureResults,
  intactResults,
  logText,
  mergedResults,
} from '../../operations/operation-results.ts';
import {
  type OperationsStep,
  operationsStep as stepOf,
  type StepOptions,
} from '../../operations/operations-step.ts';
import type { FileWriters } from '../../runs/file-writers.ts';
import { changeOf } from '../../operations/status-change.ts';
import { assertNoneLost, BACKUP_RESOURCE, BACKUP_RUNS, phaseOf } from '../backup-kind.ts';
import type { Buckets } from '../contract.ts';

export interface OperationsStepOptions extends StepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly writers: Pick<FileWriters, 'run'>;
  /** Scratch space for the log while lines are added. */
  readonly scratch: string;
}

/** Stores log, results and metadata before the CR changes. */
export async function operationsStep(
  seen: Backup,
  options: OperationsStepOptions,
): Promise<OperationsStep> {
  try {
    return await stepOf(seen, {
      ...options,
      kind: BACKUP_RUNS,
      changeOf: (backup, operations) => {
        assertNoneLost(backup, operations);
        return changeOf(BACKUP_RUNS, backup, operations);
      },
      store: async (metadata, operations) => {
        await options.writers.run(seen.metadata.uid, () => store(metadata, operations, options));
      },
    });
  } catch (error) {
    if (!isCode(error, 'DAMAGED_ARCHIVE')) throw error;
    await assertNotApart(seen, options);
    return await leave(seen, options);
  }
}

/** Files may only look gone: they are elsewhere if the location was write-once before. */
async function assertNotApart(
  { metadata, spec }: Backup,
  { buckets, signal }: OperationsStepOptions,
): Promise<void> {
  await using opened = await buckets.open(spec.storageLocation ?? '', signal);
  await new BackupArchive(opened.bucket).assertNotApart(metadata.name, { signal });
}

/** The file is damaged or gone for good. The finalizer reports it and completes the rest. */
async function leave(
  { metadata }: Backup,
  { client, assertLeading, signal }: OperationsStepOptions,
): Promise<OperationsStep> {
  const { namespace, name, uid } = metadata;
  const now = await client.find(BACKUP_RESOURCE, { namespace, name }, { signal, isExact: true });
  if (now?.metadata.uid === uid && isWaiting(phaseOf(now))) {
    assertLeading();
    const { resourceVersion } = now.metadata;
    const status = { phase: 'FinalizingPartiallyFailed' };
    const patch = { metadata: { uid, resourceVersion }, status };
    await client.patch(BACKUP_RESOURCE, { namespace, name }, patch, { signal });
  }
  const round = { ...countsOf([]), operations: [], isAnyRunning: false, ended: [] };
  return { round, hasLeft: true };
}

async function store(
  metadata: Backup,
  operations: readonly Operation[],
  { buckets, scratch, assertLeading, signal }: OperationsStepOptions,
): Promise<void> {
  const { name } = metadata.metadata;
  const location = metadata.spec.storageLocation ?? '';
  await using opened = await buckets.open(location, signal);
  const archive = new BackupArchive(opened.bucket);
  const lines = failureLines(operations);
  let results: Results | undefined;
  if (lines.length > 0) {
    const load = async () => (await archive.open(name, { signal })).results({ signal });
    const stored = await intactResults(load, 'BLOB_NOT_FOUND');
    results = mergedResults(stored, { errors: failureResults(operations) });
    assertLeading();
    const text = logText('backup', metadata, lines);
    await archive.setLogTail(name, text, { directory: scratch, signal });
  }
  assertLeading();
  await archive.update(name, { ...(results && { results }), metadata }, { signal });
}
