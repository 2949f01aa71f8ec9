import type { Command } from 'commander';
import { CodedError, formatBytes, formatGoTime } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import {
  type DamagedSnapshot,
  formatSource,
  newTreeCounters,
  verifyRepository,
} from '../../snapshot/index.ts';
import { countOf } from '../output/numbers.ts';
import { withClusterOptions } from '../cluster-options.ts';
import { interruptSignal, openContext } from '../context.ts';
import { formatElapsed } from '../progress/lines.ts';
import {
  type ProgressFlags,
  progressOption,
  startProgress,
  styleOf,
} from '../progress/reporter.ts';
import { repositorySample } from '../progress/samples.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { printLine, printJson } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';
import type { VerifyAllFlags } from './verify-all.ts';
import { UsageError } from '../usage-error.ts';
import { budgetOf, problemOf, shareOf } from './verify-options.ts';

/** Run by a CronJob in a cluster. */
export function addVerifyAll(group: Command): void {
  withClusterOptions(group.command('verify-all'))
    .description(
      'verify all repositories of a cluster by sample, and note on each BackupRepository what was found',
    )
    .option(
      '--share <percent>',
      'read so much of the packs of each; the next run goes on where this one ends',
      '5%',
    )
    .option('--budget <duration>', 'begin no pack after so long, such as 1h')
    .option('--memory-limit <size>', 'memory that the process may use, such as 512MiB')
    .option(...JSON_OPTION)
    .option('--verbose', 'log more, and print stack traces with errors')
    .addHelpText('after', '\nExample:\n  $ longshore repository verify-all -n velero --share 5%')
    .action(async (flags: VerifyAllFlags) => {
      const { verifyAll } = await import('./verify-all.ts');
      await verifyAll(flags);
    });
}

export function addVerify(group: Command): void {
  const example = 'longshore repository verify --repo /backup/repo --share 5%';
  verb(
    group,
    'verify',
    'check that all contents and snapshots are intact; the next backups store again what is damaged and still on their volumes',
    example,
  )
    .option('--read-all', 'read, decrypt and hash every content')
    .option(
      '--share <percent>',
      'read so much of all packs, such as 5%, and look at as many snapshots; the next run goes on where this one ends',
    )
    .option(
      '--budget <duration>',
      'begin no pack after so long, such as 30m; the next run goes on there',
    )
    .option('--no-record', 'do not record in the repository what is damaged')
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .action(verify);
}

interface VerifyFlags extends ProgressFlags {
  readAll?: boolean;
  share?: string;
  budget?: string;
  record: boolean;
}

async function verify(options: VerbOptions<VerifyFlags>): Promise<void> {
  const share = options.share === undefined ? undefined : shareOf(options.share);
  const budgetNs = budgetOf(options.budget);
  if (options.readAll === true && share !== undefined) {
    throw new UsageError('--read-all and --share contradict each other');
  }
  const readAll = options.readAll === true && budgetNs === undefined;
  // Bypasses the cache, because the storage itself is verified.
  await using context = await openContext(options, { cache: false });
  const { repository, logger } = context;
  const interrupt = interruptSignal(repository);
  const counters = { contents: 0, packs: 0, bytesRead: 0 };
  const treeCounters = newTreeCounters();
  let errors = 0;
  const style = styleOf(options);
  const whole = style === 'none' ? { contents: 0 } : wholeOf(repository, readAll);
  const progress = startProgress('repository verify', style, () =>
    repositorySample(counters, treeCounters, { ...whole, errors }),
  );
  try {
    const report = await verifyRepository(repository, {
      share,
      readAll,
      budgetNs,
      record: options.record,
      logger,
      counters,
      treeCounters,
      signal: interrupt.signal,
      onProblem: () => errors++,
    });
    progress.stop();
    const { elapsedSeconds } = progress;
    const { problems, problemsNotListed, concerned } = report;
    if (options.json === true) {
      printJson({
        ...counters,
        snapshots: report.snapshots,
        objects: treeCounters.objects,
        problems: problems.held,
        problemsNotListed,
        readShare: report.readShare,
        position: report.position ?? null,
        damagedContents: report.damagedContents,
        damagedPacks: report.damagedPacks,
        damagedSnapshots: concerned.damaged.map(documentOf),
        damagedSnapshotsNotListed: concerned.notNamed,
        record: report.record,
        elapsedSeconds,
      });
    } else {
      for (const { message } of problems.held) printLine(message);
      if (problemsNotListed > 0) printLine(`and ${countOf(problemsNotListed, 'more problems')}`);
      const { bytesRead } = counters;
      const read =
        readAll || report.readShare > 0
          ? `, ${formatBytes(bytesRead)} read (${percentOf(report.readShare)} of the packs)`
          : '';
      printLine(
        `${countOf(counters.contents, 'contents')} in ${countOf(counters.packs, 'packs')}${read}; ${countOf(treeCounters.objects, 'objects')} of ${countOf(report.snapshots, 'snapshots')}; took ${formatElapsed(elapsedSeconds)}`,
      );
      for (const each of concerned.damaged) {
        const { snapshot, paths, hasMore } = each;
        const { id, source, startTimeNs } = snapshot;
        const more = hasMore ? ' and more' : '';
        printLine(
          `snapshot ${id} of ${formatSource(source)} from ${timeText(startTimeNs, options)} is damaged: ${paths.join(', ')}${more}`,
        );
      }
      if (concerned.notNamed > 0) {
        printLine(`and ${countOf(concerned.notNamed, 'more snapshots')} are damaged`);
      }
    }
    const problem = problemOf(report);
    const isUnread = (code: string): boolean =>
      code === 'DAMAGED_INDEX' || code === 'DAMAGED_MANIFESTS';
    // All readable data is sound. Exit status 3 is already set.
    const onlyUnread =
      report.damagedContents === 0 && problems.held.every((each) => isUnread(each.code));
    if (problem !== undefined && !onlyUnread) throw new CodedError('VERIFY_FAILED', problem);
    if (problem === undefined && options.json !== true) printLine('no problems found');
  } finally {
    progress.stop();
    interrupt.dispose();
  }
}

const percentOf = (share: number): string => `${(100 * share).toFixed(share < 1 ? 1 : 0)} %`;

const documentOf = ({ snapshot, paths, hasMore }: DamagedSnapshot): object => ({
  id: snapshot.id,
  source: { ...snapshot.source, text: formatSource(snapshot.source) },
  startTime: formatGoTime(snapshot.startTimeNs),
  paths,
  hasMore,
});

/** The totals of a check of contents. */
function wholeOf(
  { contents }: Repository,
  readAll: boolean,
): { contents: number; packedBytes?: number } {
  if (!readAll) return { contents: contents.contentCount };
  let [count, packedBytes] = [0, 0];
  for (const { packedLength } of contents.entries()) {
    count++;
    packedBytes += packedLength;
  }
  return { contents: count, packedBytes };
}
