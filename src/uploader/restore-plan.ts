import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { readObject, type Repository } from '../repository/index.ts';
import { type DirectoryEntry, streamDirectory } from '../snapshot/index.ts';
import { newRestoreCounters, type RestoreCounters, type RestoreOptions } from './restore-report.ts';

export interface PlannedEntry {
  readonly path: string;
  readonly type: DirectoryEntry['type'];
  /** It is there already, and would be left alone. */
  readonly isKept: boolean;
}

/** Says what a restore of a tree, or of one file to this path, would do, and writes nothing. Parents come first. */
export async function planRestore(
  repository: Repository,
  root: DirectoryEntry,
  target: string,
  options: Pick<RestoreOptions, 'signal' | 'overwrite' | 'selection'>,
  onEntry: (entry: PlannedEntry) => Promise<void>,
): Promise<RestoreCounters> {
  const counters = newRestoreCounters();
  const { signal, selection } = options;
  const visit = async (entry: DirectoryEntry, path: string): Promise<void> => {
    signal.throwIfAborted();
    const isKept =
      entry.type !== 'd' && (await isKeptAt(repository, entry, join(target, path), options));
    await onEntry({ path, type: entry.type, isKept });
    if (isKept) counters.skipped++;
    else if (entry.type === 'd') counters.directories++;
    else if (entry.type === 's') counters.symlinks++;
    else {
      counters.files++;
      counters.bytes += entry.size;
    }
    if (entry.type !== 'd') return;
    const all = streamDirectory(repository.contents, entry.objectId, { signal });
    const meant = selection ? selection.entriesOf({ repository, signal }, path, all) : all;
    for await (const entries of meant) {
      for (const child of entries) await visit(child, `${path}/${child.name}`);
    }
  };
  if (root.type === 'd') await selection?.assertSome({ repository, signal }, root);
  await visit(root, '');
  return counters;
}

async function isKeptAt(
  { contents }: Repository,
  entry: DirectoryEntry,
  path: string,
  { overwrite = 'if-different' }: Pick<RestoreOptions, 'overwrite'>,
): Promise<boolean> {
  const found = await fs.lstat(path, { bigint: true }).catch(() => undefined);
  if (!found || overwrite === 'always') return false;
  if (overwrite === 'never') return true;
  if (entry.type === 'f') {
    return found.isFile() && found.size === BigInt(entry.size) && found.mtimeNs === entry.mtimeNs;
  }
  if (entry.type !== 's' || !found.isSymbolicLink()) return false;
  const link = Buffer.from(await readObject(contents, entry.objectId));
  return link.equals(await fs.readlink(path, { encoding: 'buffer' }));
}
