import { BackupArchive } from '../../archive/index.ts';
import { type Logger, MINUTE_NS, type Nanoseconds } from '../../base/index.ts';
import { type Backup, goDurationNs, Results } from '../../backup/index.ts';
import {
  actionOf,
  countsOf,
  failureLine,
  newlyFailed,
  type Operation,
  type OperationMap,
} from '../../item-operations/index.ts';
import type { ActionSession, Buckets } from './contract.ts';
import { subjectOf } from './run/cluster-runner.ts';
import { type LateLine, subjectLog } from './run/late-log.ts';

export interface OperationsRoundOptions {
  readonly operations: OperationMap;
  readonly buckets: Buckets;
  readonly logger: Logger;
  readonly directory: string;
  readonly defaultTimeoutNs: Nanoseconds;
  readonly logFormat: string;
}

interface WaitingStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly backupItemOperationsFailed?: number;
  readonly backupItemOperationsCompleted?: number;
}

/** What the CR of a backup is to say after a round of questions; undefined where nothing has changed. */
export type WaitingChange = Readonly<Record<string, unknown>>;

/**
 * Asks once about the operations of a backup that waits for them. What its CR will say is in the bucket before: results and log have the failures,
 * and its own file the phase. Nothing is asked of the bucket where nothing has changed.
 */
export async function pollOperations(
  backup: Backup,
  session: Pick<ActionSession, 'asker'>,
  options: OperationsRoundOptions,
  signal: AbortSignal,
): Promise<WaitingChange | undefined> {
  const { operations, defaultTimeoutNs } = options;
  const status = (backup.status ?? {}) as WaitingStatus;
  const round = await operations.poll(subjectOf(backup), {
    ...{ asker: session.asker, signal },
    timeoutNsOf: () => goDurationNs(backup.spec.itemOperationTimeout) ?? defaultTimeoutNs,
  });
  const { completed, failed } = countsOf(round.operations);
  const more = newlyFailed(round.operations, { countedFailed: status.backupItemOperationsFailed });
  const isPartial = failed > 0 || (status.phase ?? '').endsWith('PartiallyFailed');
  const phase = `${round.isAnyRunning ? 'WaitingForPluginOperations' : 'Finalizing'}${isPartial ? 'PartiallyFailed' : ''}`;
  const change = {
    ...(phase !== status.phase && { phase }),
    ...(completed !== (status.backupItemOperationsCompleted ?? 0) && {
      backupItemOperationsCompleted: completed,
    }),
    ...(failed !== (status.backupItemOperationsFailed ?? 0) && {
      backupItemOperationsFailed: failed,
    }),
    ...(more > 0 && { errors: (status.errors ?? 0) + more }),
  };
  if (Object.keys(change).length === 0) return undefined;
  // Counts alone are for whoever looks at the CR.
  if (phase === status.phase && more === 0) return change;
  const lines = round.operations.filter(({ status: { phase: at } }) => at === 'Failed');
  await store(backup, { change, lines: lines.slice(lines.length - more), options, signal });
  return change;
}

async function store(
  backup: Backup,
  {
    change,
    lines,
    options,
    signal,
  }: {
    readonly change: WaitingChange;
    readonly lines: readonly Operation[];
    readonly options: OperationsRoundOptions;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { buckets, logger, directory, logFormat } = options;
  await using opened = await buckets.open(backup.spec.storageLocation ?? '', signal);
  const archive = new BackupArchive(opened.bucket, { logger });
  const { name } = backup.metadata;
  const metadata = { ...backup, status: { ...backup.status, ...change } };
  if (lines.length === 0) {
    await archive.update(name, { metadata }, { signal });
    return;
  }
  const stored = await archive.open(name, { signal });
  const before = await stored.results({ signal });
  const told: LateLine[] = [];
  const results = new Results();
  for (const operation of lines) {
    const text = failureLine(operation, actionOf(operation));
    // Told already, by a server that was killed before the CR counted it.
    if (before.errors?.velero?.includes(` message: /${text}`)) continue;
    results.error(text);
    told.push({ level: 'error', message: text });
  }
  const added = results.lists.errors;
  const errors = {
    ...before.errors,
    velero: [...(before.errors?.velero ?? []), ...(added.velero ?? [])],
  };
  await using log = await subjectLog(stored, {
    backup,
    lines: told,
    directory,
    format: logFormat,
    signal,
  });
  await archive.update(name, { results: { ...before, errors }, metadata }, { signal });
  await archive.putLog(name, log, { signal });
}

/** Where neither the Backup nor a flag says anything. Velero's default. */
export const DEFAULT_OPERATION_TIMEOUT_NS: Nanoseconds = 240n * MINUTE_NS;
