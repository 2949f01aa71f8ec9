import type { Command } from 'commander';
import { Option } from 'commander';
import { CodedError, formatBytes, formatGoTime, parseDuration } from '../base/index.ts';
import { SPLITTERS } from '../codec/index.ts';
import { type Repository, streamObject } from '../repository/index.ts';
import {
  type DirectoryEntry,
  findSnapshotId,
  formatSource,
  getSnapshot,
  newTreeCounters,
  parseSource,
  resolveEntry,
  type Snapshot,
  streamDirectory,
  USER_TAG_PREFIX,
  verifyTrees,
  walkTree,
} from '../snapshot/index.ts';
import {
  createSnapshot,
  incompleteSnapshot,
  newRestoreCounters,
  newUploadCounters,
  type Overwrite,
  restoreBlocks,
  restoreTree,
  type Selection,
} from '../uploader/index.ts';
import { interruptSignal, openContext } from './context.ts';
import { lifeWith } from './ending.ts';
import { describeMissing, UnreadEntries } from './unread-entries.ts';
import { addDelete } from './snapshot-delete.ts';
import {
  type NameOptions,
  NAMES_HELP,
  OBJECT_ARGUMENT,
  SOURCE_OPTION,
  sourceOf,
} from './snapshot-names.ts';
import { repositoryPath } from './storage-options.ts';
import { absolutePath, UsageError } from './usage-error.ts';
import { snapshotDocument } from './documents.ts';
import { ExitCode } from './exit.ts';
import { isOutputOpen, writeOutput } from './output.ts';
import { formatElapsed } from './progress/lines.ts';
import {
  type Progress,
  type ProgressFlags,
  progressOption,
  startProgress,
  styleOf,
} from './progress/reporter.ts';
import { restoreSample, treeSample } from './progress/samples.ts';
import { startUploadProgress } from './progress/upload-progress.ts';
import { isWide, type OutputFlags, withOutputForm } from './output-form.ts';
import { lookAfterRepository } from './maintenance-due.ts';
import { collectPairs, JSON_OPTION, verb, type VerbOptions } from './program.ts';
import {
  assertHasParts,
  collectPatterns,
  makeTypedDirectory,
  type PartFlags,
  partOf,
  printPlan,
} from './restore-options.ts';
import { removedDocuments, removedLines } from './retention.ts';
import { addDiff } from './snapshot-diff.ts';
import { addKeepVerbs } from './snapshot-keep.ts';
import { addList } from './snapshot-list.ts';
import { JsonList, printable, printId, printJson, printLine, terminalWidth } from './terminal.ts';
import { type TimeFlags, timeText } from './times.ts';

export function addSnapshotCommands(program: Command): void {
  const group = program
    .command('snapshot')
    .description('back up, list, look into, restore and delete snapshots');
  addCreate(group);
  addList(group);
  addShow(group);
  addLs(group);
  addCat(group);
  addVerify(group);
  addDiff(group);
  addKeepVerbs(group);
  addDelete(group);
  addRestore(group);
}

interface CreateOptions extends ProgressFlags {
  block?: boolean;
  source?: string;
  tag?: Record<string, string>;
  description?: string;
  parallel?: string;
  splitter?: string;
  checkpointInterval: string;
  maintenance: 'auto' | 'never' | 'remind';
}

function addCreate(group: Command): void {
  const example = 'longshore snapshot create /data --repo /backup/repo --tag env=prod';
  verb(
    group,
    'create <path>',
    'back up a directory, a file, or with --block a device or image',
    example,
  )
    .option('--block', 'the path is a block device or disk image: store it as one raw volume')
    .option(
      '--source <user@host:/path>',
      'record the snapshot under this source (default: client and path)',
    )
    .option('--tag <key=value>', 'tag, may be repeated', collectPairs)
    .option('--description <text>', 'description of the snapshot')
    .option('--parallel <n>', 'large files read at once')
    .addOption(
      new Option('--splitter <name>', 'where files are cut, for this source from now on').choices([
        ...SPLITTERS.keys(),
      ]),
    )
    .option('--checkpoint-interval <duration>', 'make what is stored durable this often', '60s')
    .addOption(
      new Option(
        '--maintenance <when>',
        'after the backup: auto runs what is due, remind says when it is overdue',
      )
        .choices(['auto', 'remind', 'never'])
        .default('remind'),
    )
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .action(create);
}

async function create(path: string, options: VerbOptions<CreateOptions>): Promise<void> {
  const checkpointIntervalNs = parseDuration(options.checkpointInterval);
  if (checkpointIntervalNs === undefined || checkpointIntervalNs <= 0n) {
    throw new UsageError(
      `--checkpoint-interval "${options.checkpointInterval}" is not a duration such as 60s`,
    );
  }
  const parallel = options.parallel === undefined ? undefined : Number(options.parallel);
  if (parallel !== undefined && !(Number.isInteger(parallel) && parallel >= 1 && parallel <= 64)) {
    throw new UsageError(`--parallel "${options.parallel}" is not a number from 1 to 64`);
  }
  const absolute = absolutePath('path', path);
  await using context = await openContext(options, { dataPath: true });
  const { repository, logger } = context;
  const source =
    options.source !== undefined
      ? parseSource(options.source)
      : { host: repository.client.hostname, userName: repository.client.username, path: absolute };
  const counters = newUploadCounters();
  const interrupt = interruptSignal(lifeWith(repository, () => counters.bytesRead));
  const unread = new UnreadEntries();
  const progress = await startUploadProgress(styleOf(options), {
    repository,
    source,
    path: absolute,
    isBlock: options.block === true,
    counters,
    signal: interrupt.signal,
  });
  try {
    const result = await createSnapshot(repository, absolute, {
      source,
      logger,
      signal: interrupt.signal,
      counters,
      block: options.block === true,
      tags: prefixTags(options.tag),
      description: options.description ?? '',
      splitter: options.splitter,
      checkpointIntervalNs,
      repositoryPath: await repositoryPath(options),
      onFailure: (failure) => {
        unread.add(failure);
      },
      ...(parallel !== undefined && { parallel }),
    });
    progress.stop();
    const { elapsedSeconds } = progress;
    const snapshot: Snapshot = { ...result.snapshot, id: result.id };
    const { removed } = result;
    if (options.json === true) {
      const documents = { ...unread.document(), removedByPolicy: removedDocuments(removed) };
      const more = { ...documents, elapsedSeconds };
      printJson(snapshotDocument(snapshot, counters, more));
    } else {
      printId(result.id);
      describeUpload(snapshot, counters, elapsedSeconds);
      for (const line of removedLines(removed, options)) printLine(printable(line));
    }
    if (interrupt.signal.aborted) {
      process.exitCode = ExitCode.interrupted;
    } else if (counters.errors > 0) {
      process.stderr.write(`${unread.describe().join('\n')}\n`);
      process.exitCode = ExitCode.partly;
    }
    if (!interrupt.signal.aborted && options.maintenance !== 'never') {
      await lookAfterRepository(repository, {
        isAuto: options.maintenance === 'auto',
        isSilent: options.quiet === true || options.json === true,
        signal: interrupt.signal,
        logger,
      });
    }
  } finally {
    progress.stop();
    interrupt.dispose();
  }
}

const prefixTags = (tags: Record<string, string> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(tags).map(([key, value]) => [USER_TAG_PREFIX + key, value]));

function describeUpload(
  snapshot: Snapshot,
  counters: ReturnType<typeof newUploadCounters>,
  elapsedSeconds: number,
): void {
  const { rootEntry, incomplete } = snapshot;
  const state = incomplete ? `incomplete (${incomplete}) snapshot` : 'snapshot';
  printLine(`${state} ${snapshot.id} of ${formatSource(snapshot.source)}`);
  printLine(`  root ${rootEntry?.objectId ?? '-'}`);
  const files = counters.files + counters.cachedFiles;
  printLine(
    `  ${files} files (${counters.cachedFiles} unchanged), ${counters.directories} directories, ${formatBytes(counters.totalBytes)}`,
  );
  const shared = counters.contentsDeduplicated;
  printLine(
    `  read ${formatBytes(counters.bytesRead)}, stored ${formatBytes(counters.bytesPacked)} in ${counters.contentsNew} new contents, ${shared} were there already`,
  );
  if (counters.skipped > 0) printLine(`  ${counters.skipped} entries skipped by rule or type`);
  printLine(`  took ${formatElapsed(elapsedSeconds)}`);
}

function addShow(group: Command): void {
  const example = 'longshore snapshot show 335744cff3425387e282aba1a0145b72 --repo /backup/repo';
  verb(group, `show ${OBJECT_ARGUMENT}`, 'show a snapshot, or one entry of it', example)
    .option(...JSON_OPTION)
    .option(...SOURCE_OPTION)
    .addHelpText('after', NAMES_HELP)
    .action(async (name: string, options: VerbOptions<NameOptions>) => {
      await using context = await openContext(options);
      const { repository } = context;
      const source = sourceOf(repository, options);
      const id = await findSnapshotId(repository, name, source);
      printJson(
        id === undefined
          ? entryDocument(await resolveEntry(repository, name, source))
          : snapshotDocument(await getSnapshot(repository, id)),
      );
    });
}

function entryDocument(entry: DirectoryEntry, path = entry.name): object {
  return {
    path,
    type: entry.type,
    mode: entry.mode.toString(8).padStart(4, '0'),
    size: entry.type === 'd' ? (entry.summary?.size ?? 0) : entry.size,
    mtime: formatGoTime(entry.mtimeNs),
    uid: entry.uid,
    gid: entry.gid,
    objectId: entry.objectId,
  };
}

function addLs(group: Command): void {
  const example =
    'longshore snapshot ls 335744cff3425387e282aba1a0145b72/etc --repo /backup/repo -r';
  const command = verb(group, `ls ${OBJECT_ARGUMENT}`, 'list a directory of a snapshot', example);
  withOutputForm(command, { isTable: true })
    .option('-r, --recursive', 'all below')
    .option(...JSON_OPTION)
    .option(...SOURCE_OPTION)
    .addHelpText('after', NAMES_HELP)
    .action(ls);
}

async function ls(
  id: string,
  options: VerbOptions<NameOptions & { recursive?: boolean }>,
): Promise<void> {
  await using context = await openContext(options);
  const { repository } = context;
  const root = await resolveEntry(repository, id, sourceOf(repository, options));
  const json = new JsonList();
  const show = (entry: DirectoryEntry, path: string): Promise<void> =>
    options.json === true
      ? json.add(entryDocument(entry, path))
      : writeOutput(`${formatEntry(entry, path, options)}\n`);
  if (root.type !== 'd') await show(root, root.name);
  else if (options.recursive === true) {
    for await (const { entry, path } of walkTree(repository, root)) {
      if (!isOutputOpen()) return;
      if (path !== '') await show(entry, path);
    }
  } else {
    for await (const entries of streamDirectory(repository.contents, root.objectId)) {
      for (const entry of entries) await show(entry, entry.name);
    }
  }
  if (options.json === true) await json.end();
}

/** Narrower terminals see no times, and no IDs of objects. */
const LS_TIME_WIDTH = 70;
const LS_OBJECT_WIDTH = 120;
const TIME_LENGTH = 26;

function formatEntry(
  entry: DirectoryEntry,
  path: string,
  options: TimeFlags & OutputFlags,
): string {
  const size = entry.type === 'd' ? (entry.summary?.size ?? 0) : entry.size;
  const kind = entry.type === 'f' ? '-' : entry.type === 's' ? 'l' : entry.type;
  const bits = [...'rwxrwxrwx']
    .map((letter, i) => (entry.mode & (0o400 >> i) ? letter : '-'))
    .join('');
  const name = printable(path) + (entry.type === 'd' ? '/' : '');
  const start = `${kind}${bits} ${String(size).padStart(12)}`;
  const width = isWide(options) ? undefined : terminalWidth();
  if (width !== undefined && width < LS_TIME_WIDTH) return `${start} ${name}`;
  const time = timeText(entry.mtimeNs, options).padEnd(TIME_LENGTH);
  if (width !== undefined && width < LS_OBJECT_WIDTH) return `${start} ${time} ${name}`;
  return `${start} ${time} ${entry.objectId.padEnd(34)} ${name}`;
}

function addCat(group: Command): void {
  const example =
    'longshore snapshot cat 335744cff3425387e282aba1a0145b72/etc/hosts --repo /backup/repo';
  verb(group, `cat ${OBJECT_ARGUMENT}`, 'write one file to stdout', example)
    .option(...SOURCE_OPTION)
    .addHelpText('after', NAMES_HELP)
    .action(async (id: string, options: VerbOptions<NameOptions>) => {
      await using context = await openContext(options);
      const { repository } = context;
      const entry = await resolveEntry(repository, id, sourceOf(repository, options));
      if (entry.type === 'd')
        throw new CodedError('IS_A_DIRECTORY', `${id} is a directory: use snapshot ls`);
      const incomplete = entry.summary?.incomplete;
      if (incomplete !== undefined) throw incompleteSnapshot('file', incomplete);
      for await (const bytes of streamObject(context.repository.contents, entry.objectId)) {
        if (!isOutputOpen()) return;
        await writeOutput(bytes);
      }
    });
}

function addVerify(group: Command): void {
  const example =
    'longshore snapshot verify 335744cff3425387e282aba1a0145b72 --repo /backup/repo --read-all';
  verb(group, `verify ${OBJECT_ARGUMENT}`, 'check that all of a snapshot is there', example)
    .option('--read-all', 'read every file')
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .option(...SOURCE_OPTION)
    .addHelpText('after', NAMES_HELP)
    .action(verify);
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
      printLine(`${result.objects} objects, ${formatBytes(result.bytesRead)} read in ${took}`);
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

interface RestoreOptions extends NameOptions, ProgressFlags, PartFlags {
  block?: boolean;
  sparse?: boolean;
  overwrite: Overwrite;
}

function addRestore(group: Command): void {
  const example =
    'longshore snapshot restore 335744cff3425387e282aba1a0145b72 /restored --repo /backup/repo';
  verb(
    group,
    `restore ${OBJECT_ARGUMENT} <target>`,
    'restore a tree, a file or a raw volume',
    example,
  )
    .option('--block', 'the snapshot is of a raw volume: write it over a device or image')
    .option('--include <pattern>', 'only what matches, may be repeated', collectPatterns)
    .option('--exclude <pattern>', 'leave out what matches, may be repeated', collectPatterns)
    .option('--no-owner', 'what is restored belongs to who runs this, not to its owners')
    .option('--dry-run', 'only print what would be restored')
    .option('--sparse', 'leave holes where there are only zeros')
    .addOption(
      new Option('--overwrite <when>', 'what to do with files that are there')
        .choices(['if-different', 'always', 'never'])
        .default('if-different'),
    )
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .option(...SOURCE_OPTION)
    .addHelpText('after', `${NAMES_HELP}\n${PATTERNS_HELP}`)
    .action(restore);
}

const PATTERNS_HELP = `
Patterns are those of a .gitignore: "*.log" anywhere, "/etc/" a directory at the root of what is restored, with all below.
A file that is restored to a directory, or to a target that ends with a slash, keeps its name.`;

async function restore(
  id: string,
  target: string,
  options: VerbOptions<RestoreOptions>,
): Promise<void> {
  const path = absolutePath('target', target);
  const part = partOf(options);
  await using context = await openContext(options, { dataPath: true });
  const { repository, logger } = context;
  const root = await resolveEntry(repository, id, sourceOf(repository, options));
  assertHasParts(root, part);
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
      overwrite: options.overwrite,
      sparse: options.sparse === true,
      ...part,
    });
  } finally {
    progress.stop();
    interrupt.dispose();
  }
  const { elapsedSeconds } = progress;
  const { files, directories, symlinks, skipped, bytes } = counters;
  const incomplete = root.summary?.incomplete ?? null;
  if (options.json === true)
    printJson({ files, directories, symlinks, skipped, bytes, incomplete, elapsedSeconds });
  else {
    printLine(
      `restored ${files} files, ${directories} directories, ${symlinks} symbolic links, ${formatBytes(bytes)} to ${target} in ${formatElapsed(elapsedSeconds)}`,
    );
    if (skipped > 0) printLine(`  ${skipped} entries were there already`);
  }
  warnOfMissing(root);
}

async function showPlan(
  repository: Repository,
  root: DirectoryEntry,
  target: { typed: string; path: string },
  options: VerbOptions<{ overwrite: Overwrite; selection?: Selection }>,
): Promise<void> {
  const interrupt = interruptSignal(repository);
  const { overwrite, selection, json = false, quiet = false } = options;
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
        `dry run: ${files} files, ${directories} directories, ${symlinks} symbolic links, ${formatBytes(bytes)} would be restored; ${skipped} entries are there already`,
      );
    }
  } finally {
    interrupt.dispose();
  }
}

function warnOfMissing(root: DirectoryEntry): void {
  for (const text of describeMissing(root)) process.stderr.write(`longshore: ${text}\n`);
  if (root.summary?.incomplete !== undefined) process.exitCode = ExitCode.partly;
}
