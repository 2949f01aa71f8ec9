import { isCode, type Nanoseconds } from '../../../base/index.ts';
import { BackupArchive, type Results } from '../../../archive/index.ts';
import {
  isAnyRunning,
  type OperationAsker,
  type OperationMap,
  type Round,
} from '../../../item-operations/index.ts';
import type { Backup } from '../../../backup/index.ts';
import type { KubeClient } from '../../../kube/index.ts';
import { failureLines, failureResults, logText, mergedResults, subjectOf } from '../after-run.ts';
import type { Buckets } from '../contract.ts';
import { BACKUP_RESOURCE, isWaiting, phaseOf } from '../phases.ts';
import { changeOf } from './change.ts';

export interface OperationsStepOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly asker: OperationAsker;
  readonly timeoutNsOf: (action: string) => Nanoseconds;
  /** Room for the log of a backup while something is added to it. */
  readonly scratch: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

export interface OperationsStep {
  readonly round: Round;
  /** It waits no more. */
  readonly hasLeft: boolean;
}

/**
 * Asks once about the operations of a Backup that waits, and writes what has changed: the operations file, the backup's log and results, its
 * metadata, and its CR, in this order. Whoever is killed between two of them leaves what the next one writes again, with the same numbers.
 * Where nothing has changed it asks nobody but plugins. `seen` may be old: before a write the Backup is read again.
 */
export async function operationsStep(
  seen: Backup,
  options: OperationsStepOptions,
): Promise<OperationsStep> {
  const { client, map, asker, timeoutNsOf, assertLeading, signal } = options;
  const { namespace, name, uid } = seen.metadata;
  const round = await map.poll(subjectOf(seen), {
    ...{ asker, signal },
    timeoutNsOf: ({ spec }) =>
      timeoutNsOf('backupItemAction' in spec ? String(spec.backupItemAction) : ''),
  });
  if (!changeOf(seen, round.operations)) return { round, hasLeft: false };
  const backup = await client.find(BACKUP_RESOURCE, { namespace, name }, { signal, isExact: true });
  if (backup?.metadata.uid !== uid || !backup || !isWaiting(phaseOf(backup))) {
    return { round, hasLeft: true };
  }
  const change = changeOf(backup, round.operations);
  const hasLeft = !isAnyRunning(round.operations);
  if (!change) return { round, hasLeft };
  const status = { ...backup.status, ...change.status };
  if (change.isStored) await store({ ...backup, status }, round, options);
  assertLeading();
  const { resourceVersion } = backup.metadata;
  await client.patch(
    BACKUP_RESOURCE,
    { namespace, name },
    { metadata: { uid, resourceVersion }, status: change.status },
    { signal },
  );
  return { round, hasLeft };
}

async function store(
  metadata: Backup,
  { operations }: Round,
  { buckets, scratch, assertLeading, signal }: OperationsStepOptions,
): Promise<void> {
  const { name } = metadata.metadata;
  const location = metadata.spec.storageLocation ?? '';
  await using opened = await buckets.open(location, signal);
  const archive = new BackupArchive(opened.bucket);
  const lines = failureLines(operations);
  let results: Results | undefined;
  if (lines.length > 0) {
    const stored = await storedResults(archive, name, signal);
    results = mergedResults(stored, { errors: failureResults(operations) });
    assertLeading();
    await archive.setLogTail(name, logText(metadata, lines), { directory: scratch, signal });
  }
  assertLeading();
  await archive.update(name, { ...(results && { results }), metadata }, { signal });
}

/** Nothing where the file cannot be read: errors of operations are worth more than what somebody has cut off. */
async function storedResults(
  archive: BackupArchive,
  name: string,
  signal: AbortSignal,
): Promise<Results> {
  try {
    return await (await archive.open(name, { signal })).results({ signal });
  } catch (error) {
    if (isCode(error, 'DAMAGED_ARCHIVE', 'BLOB_NOT_FOUND')) return {};
    throw error;
  }
}
