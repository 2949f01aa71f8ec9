import type { Command } from 'commander';
import { CodedError, formatGoTime } from '../base/index.ts';
import { streamObject } from '../repository/index.ts';
import {
  type DirectoryEntry,
  findSnapshotId,
  getSnapshot,
  resolveEntry,
  streamDirectory,
  walkTree,
} from '../snapshot/index.ts';
import { incompleteSnapshot } from '../uploader/index.ts';
import { openContext } from './context.ts';
import { snapshotDocument } from './documents.ts';
import { isOutputOpen, writeOutput } from './output.ts';
import { isWide, type OutputFlags, withOutputForm } from './output-form.ts';
import { JSON_OPTION, verb, type VerbOptions } from './program.ts';
import { type NameOptions, OBJECT_ARGUMENT, sourceOf, withNames } from './snapshot-names.ts';
import { JsonList, printable, printJson, terminalWidth } from './terminal.ts';
import { type TimeFlags, timeText } from './times.ts';

export function addShow(group: Command): void {
  const example = 'longshore snapshot show 335744cff3425387e282aba1a0145b72 --repo /backup/repo';
  const command = verb(
    group,
    `show ${OBJECT_ARGUMENT}`,
    'show a snapshot, or one entry in it',
    example,
  ).option(...JSON_OPTION);
  withNames(command).action(async (name: string, options: VerbOptions<NameOptions>) => {
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

export function addLs(group: Command): void {
  const example =
    'longshore snapshot ls 335744cff3425387e282aba1a0145b72/etc --repo /backup/repo -r';
  const command = verb(group, `ls ${OBJECT_ARGUMENT}`, 'list a directory of a snapshot', example);
  withOutputForm(command, { isTable: true })
    .option('-r, --recursive', 'list everything below, too')
    .option(...JSON_OPTION);
  withNames(command).action(ls);
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

export function addCat(group: Command): void {
  const example =
    'longshore snapshot cat 335744cff3425387e282aba1a0145b72/etc/hosts --repo /backup/repo';
  const command = verb(group, `cat ${OBJECT_ARGUMENT}`, 'write one file to stdout', example);
  withNames(command).action(async (id: string, options: VerbOptions<NameOptions>) => {
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
