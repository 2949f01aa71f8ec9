import { CodedError, formatGoTime } from '../../base/index.ts';
import { type Repository, streamObject } from '../../repository/index.ts';
import type { FileEntry } from '../../server/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { incompleteSnapshot } from '../../uploader/index.ts';
import type { VolumeFile } from '../browse/volume-file.ts';
import { isOutputOpen, writeOutput } from '../output/streams.ts';
import { isWide, type OutputFlags } from '../output/format-options.ts';
import { JsonList, printable, terminalWidth } from '../output/terminal.ts';
import { type TimeFlags, timeText } from '../output/time-text.ts';

/** How to print entries of snapshots. */
export interface EntryFlags extends TimeFlags, OutputFlags {
  recursive?: boolean;
  json?: boolean;
}

/** Prints a directory, with all below it if requested. Prints any other entry itself. */
export async function listEntries(
  root: VolumeFile,
  options: EntryFlags,
  signal: AbortSignal,
): Promise<void> {
  const json = new JsonList();
  const show = (entry: FileEntry, path: string): Promise<void> =>
    options.json === true
      ? json.add(entryDocument(entry, path))
      : writeOutput(`${formatEntry(entry, path, options)}\n`);
  const { entry: own } = root;
  if (own.type !== 'd') await show(own, own.name);
  else if (options.recursive === true) {
    for await (const { file, path } of root.walk(signal)) {
      if (!isOutputOpen()) return;
      if (path !== '') await show(file.entry, path);
    }
  } else {
    for await (const entries of root.list(signal)) {
      if (!isOutputOpen()) return;
      for (const entry of entries) await show(entry, entry.name);
    }
  }
  if (options.json === true) await json.end();
}

/** Throws `IS_A_DIRECTORY` with the alternative in `otherwise`, and `SNAPSHOT_INCOMPLETE`. */
export async function writeFileOf(
  { contents }: Repository,
  entry: DirectoryEntry,
  { name, otherwise }: { readonly name: string; readonly otherwise: string },
): Promise<void> {
  if (entry.type === 'd') {
    throw new CodedError('IS_A_DIRECTORY', `${name} is a directory: ${otherwise}`);
  }
  const incomplete = entry.summary?.incomplete;
  if (incomplete !== undefined) throw incompleteSnapshot('file', incomplete);
  for await (const bytes of streamObject(contents, entry.objectId)) {
    if (!isOutputOpen()) return;
    await writeOutput(bytes);
  }
}

export function entryDocument(entry: FileEntry, path = entry.name): object {
  return {
    path,
    type: entry.type,
    mode: entry.mode.toString(8).padStart(4, '0'),
    size: entry.sizeBytes,
    mtime: formatGoTime(entry.mtimeNs),
    uid: entry.uid,
    gid: entry.gid,
    objectId: entry.objectId,
  };
}

/** Narrower terminals show no times, or no object IDs. */
const LS_TIME_WIDTH = 70;
const LS_OBJECT_WIDTH = 120;
const TIME_LENGTH = 26;

function formatEntry(entry: FileEntry, path: string, options: TimeFlags & OutputFlags): string {
  const kind = entry.type === 'f' ? '-' : entry.type === 's' ? 'l' : entry.type;
  const bits = [...'rwxrwxrwx']
    .map((letter, i) => (entry.mode & (0o400 >> i) ? letter : '-'))
    .join('');
  const name = printable(path) + (entry.type === 'd' ? '/' : '');
  const start = `${kind}${bits} ${String(entry.sizeBytes).padStart(12)}`;
  const width = isWide(options) ? undefined : terminalWidth();
  if (width !== undefined && width < LS_TIME_WIDTH) return `${start} ${name}`;
  const time = timeText(entry.mtimeNs, options).padEnd(TIME_LENGTH);
  if (width !== undefined && width < LS_OBJECT_WIDTH) return `${start} ${time} ${name}`;
  return `${start} ${time} ${entry.objectId.padEnd(34)} ${name}`;
}
