import type { Command } from 'commander';
import { formatBytes, formatGoTime } from '../../base/index.ts';
import { objectId, repairRepository, type RepairReport } from '../../repository/index.ts';
import { attachRoot, findLostRoots, formatSource, type LostRoot } from '../../snapshot/index.ts';
import { countOf } from '../output/numbers.ts';
import { interruptSignal, openContext } from '../context.ts';
import { ExitCode } from '../exit.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { sourceOf } from '../snapshot/names.ts';
import { printable, printJson, printLine } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';
import { UsageError } from '../usage-error.ts';

const HELP = `
First restore damaged blobs from a copy or an earlier version of the bucket, if you can. Repair rebuilds the index from
the packs, then puts damaged index blobs aside as "damaged-NAME". Nothing else is deleted or overwritten. You can run it again.
Contents of missing packs are marked deleted, so that the next backup stores them again.
To attach a root directory of a lost snapshot again: --attach OBJECT --source user@host:/path`;

export function addRepair(group: Command): void {
  const example = 'longshore repository repair --repo /backup/repo --dry-run';
  verb(group, 'repair', 'rebuild a damaged index and list of snapshots from the packs', example)
    .option('--dry-run', 'only print what would be done')
    .option(
      '--find-roots',
      'list root directories that no snapshot leads to, also if nothing is damaged now',
    )
    .option(
      '--attach <object>',
      'make a snapshot of --source from this root directory; nothing else is repaired then',
    )
    .option('--source <user@host:/path>', 'source of the snapshot that --attach makes')
    .option(...JSON_OPTION)
    .addHelpText('after', HELP)
    .action(repair);
}

interface RepairFlags {
  dryRun?: boolean;
  findRoots?: boolean;
  attach?: string;
  source?: string;
}

async function repair(options: VerbOptions<RepairFlags>): Promise<void> {
  if ((options.attach === undefined) !== (options.source === undefined))
    throw new UsageError('--attach and --source belong together');
  // Bypasses the cache, because the storage itself is repaired.
  await using context = await openContext(options, { cache: false, unreadable: 'ignore' });
  const { repository, logger } = context;
  if (options.attach !== undefined) {
    await attach(context, options.attach, options);
    return;
  }
  const interrupt = interruptSignal(repository);
  const { signal } = interrupt;
  const dryRun = options.dryRun === true;
  try {
    const report = await repairRepository(repository, { dryRun, signal, logger });
    const looksForRoots = options.findRoots === true || report.lostManifests.length > 0;
    const roots = looksForRoots ? await findLostRoots(repository, { signal }) : [];
    const left = [...repository.contents.unreadableIndexes, ...repository.manifests.unreadable];
    const isWhole = dryRun ? isNothing(report) : left.length === 0;
    if (!isWhole || report.unreadablePacks.length > 0) process.exitCode = ExitCode.partly;
    if (options.json === true) printJson({ ...report, lostRoots: roots.map(rootDocument) });
    else print(report, roots, options);
  } finally {
    interrupt.dispose();
  }
}

async function attach(
  { repository }: Awaited<ReturnType<typeof openContext>>,
  object: string,
  options: VerbOptions<RepairFlags>,
): Promise<void> {
  const source = sourceOf(repository, options);
  if (!source) throw new UsageError('--attach needs --source');
  const id = await attachRoot(repository, objectId(object), source);
  if (options.dryRun !== true) await repository.flush();
  if (options.json === true) printJson({ id, object, source: formatSource(source) });
  else printLine(`snapshot ${id} of ${formatSource(source)} is made from ${object}`);
}

const isNothing = (report: RepairReport): boolean =>
  report.damagedIndexes.length +
    report.recoveredContents +
    report.recoveredManifests +
    report.returnedManifests +
    report.rewrittenEntries +
    report.missingContents +
    report.lostManifests.length ===
  0;

function print(report: RepairReport, roots: readonly LostRoot[], options: VerbOptions): void {
  const would = report.dryRun ? 'would be ' : '';
  for (const { message, movedTo } of report.damagedIndexes) {
    const moved = movedTo === undefined ? '' : `; ${would}put aside as ${movedTo}`;
    printLine(`${message}${moved}`);
  }
  const { recoveredContents, recoveredPacks, recoveredManifests, rewrittenEntries } = report;
  if (recoveredContents + recoveredManifests > 0) {
    const lists = countOf(recoveredManifests, 'snapshot lists');
    printLine(
      `${countOf(recoveredContents, 'contents')} of ${countOf(recoveredPacks, 'packs')} and ${lists} ${would}added to the index`,
    );
  }
  if (rewrittenEntries > 0)
    printLine(`${countOf(rewrittenEntries, 'entries')} of replaced index blobs ${would}kept`);
  for (const { message } of report.lostManifests)
    printLine(`${message}; the list of snapshots goes on without it`);
  if (report.returnedManifests > 0)
    printLine(`${countOf(report.returnedManifests, 'snapshot lists')} can be read again`);
  for (const pack of report.missingPacks) printLine(`pack ${pack} is gone`);
  if (report.missingContents > 0)
    printLine(
      `${countOf(report.missingContents, 'contents')} in missing packs ${would}marked deleted`,
    );
  for (const pack of report.unreadablePacks)
    printLine(`pack ${pack} is damaged: no index names it, and its own cannot be read`);
  printRoots(roots, options);
  if (isNothing(report)) printLine('nothing to repair');
  else if (!report.dryRun) printLine('repaired; run "longshore repository verify" next');
}

function printRoots(roots: readonly LostRoot[], options: VerbOptions): void {
  if (roots.length === 0) return;
  printLine('root directories that no snapshot leads to (lost, or deleted a short time ago):');
  for (const { objectId: id, writtenNs, summary, names } of roots) {
    const size = summary ? `${summary.files} files, ${formatBytes(summary.size)}` : 'unknown size';
    const shown = names.map((name) => printable(name)).join(' ');
    printLine(`  ${id}  ${timeText(writtenNs, options)}  ${size}: ${shown}`);
  }
  printLine('make a snapshot from one: repository repair --attach OBJECT --source user@host:/path');
}

const rootDocument = ({ objectId: id, writtenNs, summary, names }: LostRoot): object => ({
  objectID: id,
  writtenAt: formatGoTime(writtenNs),
  files: summary?.files ?? null,
  size: summary?.size ?? null,
  incomplete: summary?.incomplete ?? null,
  names,
});
