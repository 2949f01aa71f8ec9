import { type Command } from 'commander';
import { formatBytes, isCanceled, parseBytes } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import {
  type Change,
  type InPlaceCounters,
  type InPlaceOptions,
  newInPlaceCounters,
  newRestoreCounters,
  restoreBlocksInPlace,
  restoreTreeInPlace,
} from '../../uploader/index.ts';
import { countOf } from '../output/numbers.ts';
import { interruptSignal, type OpenedContext } from '../context.ts';
import { writeOutput } from '../output/streams.ts';
import { formatElapsed } from '../progress/lines.ts';
import { type ProgressFlags, startProgress, styleOf } from '../progress/reporter.ts';
import { restoreSample } from '../progress/samples.ts';
import { printable, printJson, printLine } from '../output/terminal.ts';
import { warnOfNotSet } from './unreadable-entries.ts';
import { UsageError } from '../usage-error.ts';

export interface InPlaceFlags {
  inPlace?: boolean;
  keepExtra?: boolean;
  removeFirst?: boolean;
  deleteExcluded?: boolean;
  trustTimes?: boolean;
  ignoreOpenFiles?: boolean;
  maxWrite?: string;
}

export const addInPlaceOptions = (command: Command): Command =>
  command
    .option(
      '--in-place',
      'bring an existing target back to the snapshot: compare what it holds, write only what differs, and remove what the snapshot does not have',
    )
    .option(
      '--max-write <bytes>',
      'with --in-place: count first, and change nothing if more than this would be written and removed, such as 10GiB',
    )
    .option('--keep-extra', 'with --in-place: leave files that the snapshot does not have')
    .option(
      '--delete-excluded',
      'with --in-place: also remove files that ignore files or policies kept out of the backup',
    )
    .option(
      '--remove-first',
      'with --in-place: remove what the snapshot does not have before files are written, which makes room, and not at the end',
    )
    .option(
      '--trust-times',
      'with --in-place: take files of the same size and modification time for equal without reading them',
    )
    .option(
      '--ignore-open-files',
      'with --in-place: go on although processes have files of the target open',
    );

export const IN_PLACE_HELP = `
In place: the target must not be in use, which is checked: nothing below it may be open or mounted, and of a device nothing at all.
A run that was stopped is repeated with the same command. With --dry-run it prints what differs and writes nothing.`;

/** Throws {@link UsageError} for options that exclude each other. */
export function assertInPlaceFlags(
  flags: InPlaceFlags & { sparse?: boolean; overwrite?: string; block?: boolean },
): void {
  if (flags.inPlace === true) {
    if (flags.sparse === true) throw new UsageError('--sparse is not for --in-place');
    if (flags.overwrite !== undefined) {
      throw new UsageError('--overwrite is not for --in-place, which compares contents');
    }
    const { keepExtra, trustTimes, removeFirst, deleteExcluded } = flags;
    if (flags.block === true && (keepExtra ?? trustTimes ?? removeFirst ?? deleteExcluded)) {
      throw new UsageError(
        '--keep-extra, --trust-times, --remove-first and --delete-excluded are not for raw volumes (--block)',
      );
    }
    if (keepExtra === true && (removeFirst ?? deleteExcluded)) {
      throw new UsageError('--keep-extra removes nothing: leave out --remove-first and --delete-excluded'); // prettier-ignore
    }
    maxWriteBytes(flags);
    return;
  }
  const given = Object.entries({
    '--max-write': flags.maxWrite,
    '--keep-extra': flags.keepExtra,
    '--delete-excluded': flags.deleteExcluded,
    '--remove-first': flags.removeFirst,
    '--trust-times': flags.trustTimes,
    '--ignore-open-files': flags.ignoreOpenFiles,
  }).find(([, value]) => value !== undefined);
  if (given) throw new UsageError(`${given[0]} needs --in-place`);
}

/** Throws {@link UsageError}. */
export function maxWriteBytes({ maxWrite }: Pick<InPlaceFlags, 'maxWrite'>): number | undefined {
  if (maxWrite === undefined) return undefined;
  const bytes = maxWrite === '0' ? 0 : parseBytes(maxWrite);
  if (bytes !== undefined) {
    if (Number.isSafeInteger(bytes)) return bytes;
    const text = `--max-write "${maxWrite}" is more than can be counted (8 PiB): leave it out where there is no bound`;
    throw new UsageError(text);
  }
  throw new UsageError(
    `--max-write "${maxWrite}" is not a number of bytes such as 500MiB or 10GiB`,
  );
}

interface Flags extends InPlaceFlags, ProgressFlags {
  block?: boolean;
  dryRun?: boolean;
  json?: boolean;
  quiet?: boolean;
}

/** Paths in the JSON report. The rest is counted. Our choice: people read the report too. */
const REMOVED_MAX = 1000;
const STOPPED =
  'the target is restored in part only, since the restore was stopped: run the same command again to complete it';

const hasChanged = ({ bytesWritten, removed, created, attributes }: InPlaceCounters): boolean =>
  bytesWritten + removed + created + attributes > 0;

/** Runs `snapshot restore --in-place` and prints the result. */
export async function restoreInPlace(
  { repository, logger }: Pick<OpenedContext, 'logger'> & { repository: Repository },
  root: DirectoryEntry,
  path: string,
  flags: Flags,
  {
    selection,
    owner,
    excluded,
    extras,
    devices = false,
  }: Pick<InPlaceOptions, 'selection' | 'owner' | 'excluded' | 'extras' | 'devices'>,
): Promise<void> {
  const { json = false, quiet = false, dryRun = false } = flags;
  const isBlock = flags.block === true;
  const counters = newRestoreCounters();
  const result = newInPlaceCounters();
  const unchecked: string[] = [];
  const removed: string[] = [];
  const progress = startProgress('snapshot restore', styleOf(flags), () =>
    restoreSample(counters, root, selection !== undefined),
  );
  const interrupt = interruptSignal(repository);
  const run = isBlock ? restoreBlocksInPlace : restoreTreeInPlace;
  const maxWrite = maxWriteBytes(flags);
  try {
    await run(repository, root, path, {
      logger,
      signal: interrupt.signal,
      counters,
      result,
      dryRun,
      keepExtra: flags.keepExtra === true,
      removeFirst: flags.removeFirst === true,
      excluded,
      trustTimes: flags.trustTimes === true,
      ignoreOpenFiles: flags.ignoreOpenFiles === true,
      ...(maxWrite !== undefined && { maxWriteBytes: maxWrite }),
      ...(selection && { selection }),
      ...(owner && { owner }),
      ...(extras && { extras }),
      devices,
      onUnchecked: (text) => {
        unchecked.push(text);
        logger.warn({ target: path }, `could not check everything: ${text}`);
      },
      onChange: async (change) => {
        if (change.kind === 'remove' && removed.length < REMOVED_MAX) removed.push(change.path);
        if (!json && !quiet) await writeOutput(`${lineOf(change)}\n`);
      },
    });
  } catch (error) {
    if (isCanceled(error) && hasChanged(result)) logger.warn({ target: path }, STOPPED);
    throw error;
  } finally {
    progress.stop();
    interrupt.dispose();
  }
  const { elapsedSeconds } = progress;
  if (json)
    printJson({
      inPlace: true,
      dryRun,
      ...result,
      attributesNotSet: counters.attributesNotSet,
      removedPaths: removed,
      unchecked,
      elapsedSeconds,
    });
  else for (const line of summary(result, { path, dryRun, elapsedSeconds })) printLine(line);
  warnOfNotSet(counters.attributesNotSet);
}

const lineOf = ({ kind, path, bytes }: Change): string =>
  `${kind.padEnd('attributes'.length)} ${printable(path)}${bytes > 0 ? ` (${formatBytes(bytes)})` : ''}`;

function summary(
  result: InPlaceCounters,
  run: { path: string; dryRun: boolean; elapsedSeconds: number },
): string[] {
  const { created, changed, replaced, attributes, removed, unchanged, kept } = result;
  const parts = [
    [changed, 'changed'],
    [created, 'created'],
    [replaced, 'replaced'],
    [attributes, 'with other attributes'],
    [removed, 'removed'],
    [unchanged, 'unchanged'],
    [kept, 'kept that the snapshot does not have'],
  ] as const;
  const entries = parts.flatMap(([count, what]) =>
    count > 0 || what === 'changed' ? [`${countOf(count, 'entries')} ${what}`] : [],
  );
  const compared = `${formatBytes(result.bytesCompared)} compared`;
  const removedBytes =
    result.bytesRemoved > 0 ? ` and ${formatBytes(result.bytesRemoved)} removed` : '';
  const bytes = run.dryRun
    ? `${compared}, ${formatBytes(result.bytesDifferent)} would be written${removedBytes}`
    : `${compared}, ${formatBytes(result.bytesWritten)} written${removedBytes}`;
  const done = run.dryRun ? 'dry run' : `brought ${run.path} back`;
  return [`${done} in ${formatElapsed(run.elapsedSeconds)}: ${bytes}`, `  ${entries.join(', ')}`];
}
