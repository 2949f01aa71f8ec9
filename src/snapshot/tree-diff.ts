import type { Repository } from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { readDirectory, walkTree } from './tree-walk.ts';

export interface TreeChange {
  readonly kind: 'added' | 'removed' | 'changed' | 'attributes';
  /** Relative to the roots, '' for the roots themselves. */
  readonly path: string;
  readonly before?: DirectoryEntry;
  readonly after?: DirectoryEntry;
}

/**
 * What differs between two trees, parents first. Directories that are one object are not entered. What is added or removed
 * comes with all below it; an entry of another type is removed and added. Two files whose objects differ count as changed.
 */
export async function* diffTrees(
  repository: Repository,
  before: DirectoryEntry,
  after: DirectoryEntry,
  path = '',
): AsyncGenerator<TreeChange> {
  if (before.type !== after.type) {
    yield* whole(repository, before, path, 'removed');
    yield* whole(repository, after, path, 'added');
    return;
  }
  const isOtherObject = before.objectId !== after.objectId;
  if (isOtherObject && before.type !== 'd') yield { kind: 'changed', path, before, after };
  else if (!hasSameAttributes(before, after)) yield { kind: 'attributes', path, before, after };
  if (!isOtherObject || before.type !== 'd') return;
  const old = new Map<string, DirectoryEntry>();
  for (const entry of await readDirectory(repository, before.objectId)) old.set(entry.name, entry);
  for (const entry of await readDirectory(repository, after.objectId)) {
    const below = path === '' ? entry.name : `${path}/${entry.name}`;
    const earlier = old.get(entry.name);
    old.delete(entry.name);
    if (earlier) yield* diffTrees(repository, earlier, entry, below);
    else yield* whole(repository, entry, below, 'added');
  }
  for (const entry of old.values()) {
    yield* whole(repository, entry, path === '' ? entry.name : `${path}/${entry.name}`, 'removed');
  }
}

async function* whole(
  repository: Repository,
  root: DirectoryEntry,
  at: string,
  kind: 'added' | 'removed',
): AsyncGenerator<TreeChange> {
  for await (const { entry, path } of walkTree(repository, root, at)) {
    yield kind === 'added' ? { kind, path, after: entry } : { kind, path, before: entry };
  }
}

/** The time of a directory only says that something in it has changed. */
function hasSameAttributes(a: DirectoryEntry, b: DirectoryEntry): boolean {
  const isSame = a.mode === b.mode && a.uid === b.uid && a.gid === b.gid;
  return isSame && (a.type === 'd' || a.mtimeNs === b.mtimeNs);
}
