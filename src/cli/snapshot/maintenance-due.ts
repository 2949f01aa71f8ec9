import { GO_ZERO_TIME_NS, HOUR_NS, type Logger, messageOf } from '../../base/index.ts';
import {
  clientName,
  loadMaintenanceParameters,
  loadSchedule,
  type Repository,
  runMaintenance,
} from '../../repository/index.ts';
import { planGarbageCollection } from '../../snapshot/index.ts';
import { ExitCode } from '../exit.ts';
import { maintenanceLines } from '../repository/maintenance-text.ts';
import { printLine } from '../output/terminal.ts';

export interface AfterBackup {
  /** Runs overdue maintenance, instead of only reporting it. */
  readonly isAuto: boolean;
  readonly isSilent: boolean;
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/**
 * Maintenance after a backup. The snapshot is already stored, so errors are only printed. If
 * maintenance was requested, the exit code is `partly`.
 */
export async function lookAfterRepository(
  repository: Repository,
  { isAuto, isSilent, signal, logger }: AfterBackup,
): Promise<void> {
  try {
    const overdue = await describeOverdue(repository);
    if (!isAuto || overdue?.isOfOther === true) {
      if (overdue && !isSilent) process.stderr.write(`longshore: ${overdue.text}\n`);
      return;
    }
    const owner = (await loadMaintenanceParameters(repository))?.owner ?? '';
    if (owner !== '' && owner !== clientName(repository.client)) return;
    const options = { mode: 'auto', safety: 'full', force: false, dryRun: false } as const;
    const report = await runMaintenance(repository, {
      ...options,
      signal,
      logger,
      collectGarbage: planGarbageCollection,
    });
    if (report.mode === 'none' || isSilent) return;
    for (const line of maintenanceLines(report)) printLine(`  maintenance: ${line}`);
  } catch (error) {
    if (!isAuto) {
      // Maintenance was not requested, and the backup is complete.
      const text =
        'cannot tell whether maintenance is overdue; run longshore repository verify to find out more';
      logger.warn({ error: messageOf(error) }, text);
      return;
    }
    process.stderr.write(
      `longshore: the snapshot is stored, but maintenance failed: ${messageOf(error)}\n`,
    );
    process.exitCode = ExitCode.partly;
  }
}

/** A run is overdue if two intervals have passed since the last one. */
async function describeOverdue(
  repository: Repository,
): Promise<{ text: string; isOfOther: boolean } | undefined> {
  const parameters = await loadMaintenanceParameters(repository);
  if (!parameters?.full.enabled) return undefined;
  const { nextFullNs } = await loadSchedule(repository);
  const intervalNs = BigInt(parameters.full.interval);
  const [first] = await repository.manifests.find({ type: 'snapshot' });
  const isFirst = nextFullNs === GO_ZERO_TIME_NS;
  const sinceNs = isFirst ? first?.modifiedNs : nextFullNs - intervalNs;
  const idleNs = sinceNs === undefined ? 0n : repository.clock.nowNs() - sinceNs;
  if (idleNs < 2n * intervalNs || idleNs <= 0n) return undefined;
  const days = idleNs / (24n * HOUR_NS);
  const ago = days > 1n ? `${days} days` : `${idleNs / HOUR_NS} hours`;
  const last = isFirst ? `it has not run once in ${ago}` : `it last ran ${ago} ago`;
  const { owner } = parameters;
  const isOfOther = owner !== '' && owner !== clientName(repository.client);
  const remedy = isOfOther
    ? `its owner is ${owner}`
    : 'run longshore repository maintain, or add --maintenance auto';
  return { text: `full maintenance is overdue: ${last}; ${remedy}`, isOfOther };
}
