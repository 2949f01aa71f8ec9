import { type Command, Option } from 'commander';
import { formatBytes, parseDuration } from '../../base/index.ts';
import { SPLITTERS } from '../../codec/index.ts';
import { formatSource, parseSource, type Snapshot, USER_TAG_PREFIX } from '../../snapshot/index.ts';
import { createSnapshot, newUploadCounters } from '../../uploader/index.ts';
import { countOf, numberText } from '../output/numbers.ts';
import { interruptSignal, openContext } from '../context.ts';
import { snapshotDocument } from '../output/snapshot-document.ts';
import { lifeWith } from '../hung-exit.ts';
import { ExitCode } from '../exit.ts';
import { lookAfterRepository } from './maintenance-due.ts';
import { collectPairs, JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { formatElapsed } from '../progress/lines.ts';
import { type ProgressFlags, progressOption, styleOf } from '../progress/reporter.ts';
import { startUploadProgress } from '../progress/upload-progress.ts';
import { streamOf } from './stdin.ts';
import { removedDocuments, removedLines } from './retention.ts';
import { repositoryPath } from '../storage-options.ts';
import { printable, printId, printJson, printLine } from '../output/terminal.ts';
import { UnreadEntries } from '../restore/unreadable-entries.ts';
import { absolutePath, UsageError } from '../usage-error.ts';

interface CreateOptions extends ProgressFlags {
  block?: boolean;
  stdin?: string;
  stdinCommand?: boolean;
  source?: string;
  tag?: Record<string, string>;
  description?: string;
  parallel?: string;
  splitter?: string;
  checkpointInterval: string;
  maintenance: 'auto' | 'never' | 'remind';
  xattrs: boolean;
  hardLinks: boolean;
}

export function addCreate(group: Command): void {
  const example = 'longshore snapshot create /data --repo /backup/repo --tag env=prod';
  verb(
    group,
    'create [path...]',
    'back up a directory, a file, a stream, or with --block a device or image',
    example,
  )
    .option('--stdin <name>', 'store what comes from stdin, as a file of this name')
    .option(
      '--stdin-command',
      'with --stdin: run the command after --, and store its output if it succeeds',
    )
    .option(
      '--block',
      'treat the path as a block device or disk image, and store it as one raw volume',
    )
    .option(
      '--source <user@host:/path>',
      'record the snapshot under this source (default: client and path)',
    )
    .option('--tag <key=value>', 'tag of the snapshot; may be repeated', collectPairs)
    .option('--description <text>', 'description of the snapshot')
    .option('--parallel <n>', 'number of large files to read at the same time')
    .addOption(
      new Option(
        '--splitter <name>',
        'splitter that cuts files, for this source from now on',
      ).choices([...SPLITTERS.keys()]),
    )
    .option(
      '--checkpoint-interval <duration>',
      'how often to make durable what has been stored so far',
      '60s',
    )
    .option('--no-xattrs', 'do not store extended attributes, POSIX ACLs and file capabilities')
    .option('--no-hard-links', 'store the names of a hard-linked file as files of their own')
    .addOption(
      new Option(
        '--maintenance <when>',
        'after the backup: auto runs what is due, remind warns when full maintenance is overdue',
      )
        .choices(['auto', 'remind', 'never'])
        .default('remind'),
    )
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .action(create);
}

async function create(paths: string[], options: VerbOptions<CreateOptions>): Promise<void> {
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
  const input = streamOf(paths, options);
  const absolute = input ? `/${input.name}` : onlyPath(paths);
  await using context = await openContext(options, { dataPath: true, unreadable: 'tell' });
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
    isBlock: options.block === true || input !== undefined,
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
      input,
      tags: prefixTags(options.tag),
      description: options.description ?? '',
      splitter: options.splitter,
      checkpointIntervalNs,
      repositoryPath: await repositoryPath(options),
      extras: { xattrs: options.xattrs, links: options.hardLinks },
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

function onlyPath([path, ...more]: readonly string[]): string {
  if (path === undefined) throw new UsageError('give the path to back up, or --stdin NAME');
  if (more.length > 0) throw new UsageError(`one path at a time: "${more[0]}" is another one`);
  return absolutePath('path', path);
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
    `  ${countOf(files, 'files')} (${numberText(counters.cachedFiles)} unchanged), ${countOf(counters.directories, 'directories')}, ${formatBytes(counters.totalBytes)}`,
  );
  const shared = counters.contentsDeduplicated;
  printLine(
    `  read ${formatBytes(counters.bytesRead)}, stored ${formatBytes(counters.bytesPacked)} in ${countOf(counters.contentsNew, 'new contents')}, ${numberText(shared)} already stored`,
  );
  if (counters.skipped > 0)
    printLine(
      `  ${countOf(counters.skipped, 'entries')} skipped by a rule or because of their type`,
    );
  if (counters.attributesUnread > 0) {
    const entries = countOf(counters.attributesUnread, 'entries');
    printLine(`  ${entries} stored without extended attributes, which could not be read`);
  }
  printLine(`  took ${formatElapsed(elapsedSeconds)}`);
}
