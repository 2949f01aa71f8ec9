import { type Command, Option } from 'commander';
import { formatBytes } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import {
  type DirectoryEntry,
  loadPoliciesOf,
  resolveEntry,
  resolveOrigin,
} from '../../snapshot/index.ts';
import {
  newRestoreCounters,
  type Overwrite,
  restoreBlocks,
  restoreTree,
  type RulesOfBackup,
  type Selection,
} from '../../uploader/index.ts';
import { countOf } from '../output/numbers.ts';
import { interruptSignal, openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { formatElapsed } from '../progress/lines.ts';
import {
  type ProgressFlags,
  progressOption,
  startProgress,
  styleOf,
} from '../progress/reporter.ts';
import { restoreSample } from '../progress/samples.ts';
import {
  addInPlaceOptions,
  assertInPlaceFlags,
  IN_PLACE_HELP,
  type InPlaceFlags,
  restoreInPlace,
} from './in-place.ts';
import {
  assertHasParts,
  collectPatterns,
  makeTypedDirectory,
  type PartFlags,
  partOf,
  printPlan,
} from './options.ts';
import { type NameOptions, OBJECT_ARGUMENT, sourceOf, withNames } from '../snapshot/names.ts';
import { printJson, printLine } from '../output/terminal.ts';
import { warnOfMissing, warnOfNotSet } from './unreadable-entries.ts';
import { absolutePath } from '../usage-error.ts';

interface RestoreOptions extends NameOptions, ProgressFlags, PartFlags, InPlaceFlags {
  block?: boolean;
  sparse?: boolean;
  overwrite?: Overwrite;
}

export function addRestore(group: Command): void {
  const example =
    'longshore snapshot restore 335744cff3425387e282aba1a0145b72 /restored --repo /backup/repo';
  const command = verb(
    group,
    `restore ${OBJECT_ARGUMENT} <target>`,
    'restore a tree, a file or a raw volume',
    example,
  )
    .option('--block', 'the snapshot holds a raw volume: write it to a device or image')
    .option('--include <pattern>', 'restore only what matches; may be repeated', collectPatterns)
    .option('--exclude <pattern>', 'leave out what matches; may be repeated', collectPatterns)
    .option(
      '--no-owner',
      'restored files belong to the user who runs this, not to their recorded owners',
    )
    .option('--no-xattrs', 'restore no extended attributes, POSIX ACLs and file capabilities')
    .option('--no-hard-links', 'restore the names of a hard-linked file as files of their own')
    .option('--devices', 'make device nodes; this needs root')
    .option('--dry-run', 'only print what would be restored')
    .option('--sparse', 'write long runs of zeros as holes')
    .addOption(
      new Option(
        '--overwrite <when>',
        'when to overwrite files that already exist (default: if-different)',
      ).choices(['if-different', 'always', 'never']),
    )
    .addOption(progressOption())
    .option(...JSON_OPTION);
  addInPlaceOptions(command);
  withNames(command, PATTERNS_HELP + IN_PLACE_HELP).action(restore);
}

const PATTERNS_HELP = `
Patterns are those of a .gitignore: "*.log" matches anywhere, "/etc/" a directory at the root of what is restored and all below.
A file that is restored to a directory, or to a target that ends with a slash, keeps its name.`;

async function restore(
  id: string,
  target: string,
  options: VerbOptions<RestoreOptions>,
): Promise<void> {
  assertInPlaceFlags(options);
  const path = absolutePath('target', target);
  const part = partOf(options);
  await using context = await openContext(options, { dataPath: true, cache: 'with-data' });
  const { repository, logger } = context;
  const root = await resolveEntry(repository, id, sourceOf(repository, options));
  assertHasParts(root, part);
  if (options.inPlace === true) {
    const excluded = await rulesOf(repository, id, options);
    await restoreInPlace(context, root, path, options, { ...part, excluded });
    return;
  }
  if (options.dryRun === true) {
    await showPlan(repository, root, { typed: target, path }, { ...options, ...part });
    return;
  }
  await makeTypedDirectory(target, root);
  const counters = newRestoreCounters();
  const progress = startProgress('snapshot restore', styleOf(options), () =>
    restoreSample(counters, root, part.selection !== undefined),
  );
  const interrupt = interruptSignal(repository);
  try {
    const run = options.block === true ? restoreBlocks : restoreTree;
    await run(repository, root, path, {
      logger,
      signal: interrupt.signal,
      counters,
      overwrite: options.overwrite ?? 'if-different',
      sparse: options.sparse === true,
      ownTarget: true,
      ...part,
    });
  } finally {
    progress.stop();
    interrupt.dispose();
  }
  const { elapsedSeconds } = progress;
  const { files, directories, symlinks, skipped, bytes, attributesNotSet } = counters;
  const incomplete = root.summary?.incomplete ?? null;
  if (options.json === true)
    printJson({
      files,
      directories,
      symlinks,
      skipped,
      bytes,
      attributesNotSet,
      incomplete,
      elapsedSeconds,
    });
  else {
    printLine(
      `restored ${entriesText(counters)}, ${formatBytes(bytes)} to ${target} in ${formatElapsed(elapsedSeconds)}`,
    );
    if (skipped > 0) printLine(`  ${countOf(skipped, 'entries')} already existed`);
  }
  warnOfMissing(root);
  warnOfNotSet(attributesNotSet);
}

/** The rules of the backup; undefined if they do not matter or are unknown. */
async function rulesOf(
  repository: Repository,
  id: string,
  options: VerbOptions<RestoreOptions>,
): Promise<RulesOfBackup | undefined> {
  const { block, keepExtra, deleteExcluded } = options;
  if (block ?? keepExtra ?? deleteExcluded) return undefined;
  const origin = await resolveOrigin(repository, id, sourceOf(repository, options));
  if (!origin) return undefined;
  const { snapshot, root, path } = origin;
  return { policies: await loadPoliciesOf(repository, snapshot), root, path };
}

interface Entries {
  readonly files: number;
  readonly directories: number;
  readonly symlinks: number;
}

const entriesText = ({ files, directories, symlinks }: Entries): string =>
  [
    countOf(files, 'files'),
    countOf(directories, 'directories'),
    countOf(symlinks, 'symbolic links'),
  ].join(', ');

async function showPlan(
  repository: Repository,
  root: DirectoryEntry,
  target: { typed: string; path: string },
  options: VerbOptions<{ overwrite?: Overwrite; selection?: Selection }>,
): Promise<void> {
  const interrupt = interruptSignal(repository);
  const { overwrite = 'if-different', selection, json = false, quiet = false } = options;
  try {
    const { files, directories, symlinks, skipped, bytes } = await printPlan(
      repository,
      root,
      target,
      {
        signal: interrupt.signal,
        overwrite,
        ...(selection && { selection }),
        isSilent: json || quiet,
      },
    );
    if (json) printJson({ dryRun: true, files, directories, symlinks, skipped, bytes });
    else {
      printLine(
        `dry run: ${entriesText({ files, directories, symlinks })}, ${formatBytes(bytes)} would be restored; ${countOf(skipped, 'entries')} already exist`,
      );
    }
  } finally {
    interrupt.dispose();
  }
}
