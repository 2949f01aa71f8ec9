import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { joinPath } from '../../base/index.ts';
import { readObject, type Repository } from '../../repository/index.ts';
import {
  type Batches,
  type DirectoryEntry,
  type WalkedEntry,
  walkTree,
} from '../../snapshot/index.ts';
import { type BytePath, fsPath } from '../../volume-files/index.ts';
import { diskPathOf } from './restore-names.ts';
import { newRestoreCounters, type RestoreCounters, type RestoreOptions } from './restore-report.ts';

export interface PlannedEntry {
  /** Relative to the target, '' for the target itself. */
  readonly path: string;
  readonly type: DirectoryEntry['type'];
  /** The entry already exists and would be skipped. */
  readonly isKept: boolean;
}

/** Lists the actions of a restore of a tree, or of one file. Writes nothing. Parents come first. */
export async function planRestore(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: Pick<RestoreOptions, 'signal' | 'overwrite' | 'selection'>,
  onEntry: (entry: PlannedEntry) => Promise<void>,
): Promise<RestoreCounters> {
  const counters = newRestoreCounters();
  const { signal, selection } = options;
  if (root.type === 'd') await selection?.assertSome({ repository, signal }, root);
  const entriesOf =
    selection &&
    ((path: string, all: Batches): Batches =>
      selection.entriesOf({ repository, signal }, path === '' ? '' : `/${path}`, all));
  for await (const walked of walkTree(repository, root, { signal, entriesOf })) {
    const { entry, path } = walked;
    const isKept =
      entry.type !== 'd' && (await isKeptAt(repository, entry, placeOf(walked, target), options));
    await onEntry({ path, type: entry.type, isKept });
    if (isKept) counters.skipped++;
    else if (entry.type === 'd') counters.directories++;
    else if (entry.type === 's') counters.symlinks++;
    else {
      counters.files++;
      counters.bytes += entry.size;
    }
  }
  return counters;
}

/** Path of an entry. An unsafe name is shown, but never counts as existing. */
function placeOf(walked: WalkedEntry, target: string): BytePath {
  try {
    return diskPathOf(walked).reduce<BytePath>((path, name) => joinPath(path, name), target);
  } catch {
    return join(target, walked.path);
  }
}

async function isKeptAt(
  { contents }: Repository,
  entry: DirectoryEntry,
  path: BytePath,
  { overwrite = 'if-different' }: Pick<RestoreOptions, 'overwrite'>,
): Promise<boolean> {
  const found = await fs.lstat(fsPath(path), { bigint: true }).catch(() => undefined);
  if (!found || overwrite === 'always') return false;
  if (overwrite === 'never') return true;
  if (entry.type === 'f') {
    return found.isFile() && found.size === BigInt(entry.size) && found.mtimeNs === entry.mtimeNs;
  }
  if (entry.type !== 's' || !found.isSymbolicLink()) return false;
  const link = Buffer.from(await readObject(contents, entry.objectId));
  return link.equals(await fs.readlink(fsPath(path), { encoding: 'buffer' }));
}
