import type { Command } from 'commander';
import { CodedError, formatBytes } from '../../base/index.ts';
import { newTreeCounters, resolveEntry, verifyTrees } from '../../snapshot/index.ts';
import { countOf } from '../output/numbers.ts';
import { interruptSignal, openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { formatElapsed } from '../progress/lines.ts';
import {
  type Progress,
  type ProgressFlags,
  progressOption,
  startProgress,
  styleOf,
} from '../progress/reporter.ts';
import { treeSample } from '../progress/samples.ts';
import { type NameOptions, OBJECT_ARGUMENT, sourceOf, withNames } from './names.ts';
import { printJson, printLine } from '../output/terminal.ts';
import { warnOfMissing } from '../restore/unreadable-entries.ts';

export function addVerify(group: Command): void {
  const example =
    'longshore snapshot verify 335744cff3425387e282aba1a0145b72 --repo /backup/repo --read-all';
  const command = verb(
    group,
    `verify ${OBJECT_ARGUMENT}`,
    'check that a snapshot can be restored completely',
    example,
  )
    .option('--read-all', 'read every file')
    .addOption(progressOption())
    .option(...JSON_OPTION);
  withNames(command).action(verify);
}

type VerifyFlags = NameOptions & ProgressFlags & { readAll?: boolean };

async function verify(id: string, options: VerbOptions<VerifyFlags>): Promise<void> {
  await using context = await openContext(options, { cache: false });
  const { repository } = context;
  const interrupt = interruptSignal(repository);
  const counters = newTreeCounters();
  const readAll = options.readAll === true;
  let progress: Progress | undefined;
  try {
    const root = await resolveEntry(repository, id, sourceOf(repository, options));
    progress = startProgress('snapshot verify', styleOf(options), () =>
      treeSample(counters, root, readAll),
    );
    const result = await verifyTrees(repository, [root], {
      readAll,
      signal: interrupt.signal,
      counters,
    });
    progress.stop();
    const { elapsedSeconds } = progress;
    const incomplete = root.summary?.incomplete ?? null;
    if (options.json === true) printJson({ ...result, incomplete, elapsedSeconds });
    else {
      const took = formatElapsed(elapsedSeconds);
      printLine(
        `${countOf(result.objects, 'objects')}, ${formatBytes(result.bytesRead)} read in ${took}`,
      );
    }
    const [first] = result.problems;
    if (first) throw new CodedError('VERIFY_FAILED', first.message);
    if (options.json !== true) printLine('no problems found');
    warnOfMissing(root);
  } finally {
    progress?.stop();
    interrupt.dispose();
  }
}
