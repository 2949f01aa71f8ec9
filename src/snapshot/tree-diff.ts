import type { Repository } from '../repository/index.ts';
import { rawNameIn } from '../volume-files/index.ts';
import type { DirectoryEntry } from './directory/directory.ts';
import { pairEntries } from './directory/directory-pairs.ts';
import { streamDirectory } from './directory/directory-stream.ts';
import { walkTree } from './tree-walk.ts';

export interface TreeChange {
  readonly kind: 'added' | 'removed' | 'changed' | 'attributes';
  /** Relative to the roots. The roots are ''. */
  readonly path: string;
  readonly before?: DirectoryEntry;
  readonly after?: DirectoryEntry;
}

/**
 * Differences between two trees, parents first. Skips directories with the same object. Yields
 * everything below an added or removed directory. An entry with another type counts as removed and
 * added. Files with different objects count as changed. Holds only a part of each directory on the
 * way down. walkTree() cannot do this, because two trees are walked at once. Subtrees of only one
 * side use walkTree().
 */
export async function* diffTrees(
  repository: Repository,
  before: DirectoryEntry,
  after: DirectoryEntry,
  path = '',
): AsyncGenerator<TreeChange> {
  if (before.type !== after.type || isOtherName(before, after)) {
    yield* whole(repository, before, path, 'removed');
    yield* whole(repository, after, path, 'added');
    return;
  }
  const isOtherObject = before.objectId !== after.objectId;
  if (isOtherObject && before.type !== 'd') yield { kind: 'changed', path, before, after };
  else if (!hasSameAttributes(before, after)) yield { kind: 'attributes', path, before, after };
  if (!isOtherObject || before.type !== 'd') return;
  const { contents } = repository;
  const pairs = pairEntries(
    streamDirectory(contents, before.objectId),
    streamDirectory(contents, after.objectId),
  );
  for await (const { before: old, after: young } of pairs) {
    const name = (young ?? old)?.name ?? '';
    const below = path === '' ? name : `${path}/${name}`;
    if (old && young) yield* diffTrees(repository, old, young, below);
    else if (old) yield* whole(repository, old, below, 'removed');
    else if (young) yield* whole(repository, young, below, 'added');
  }
}

async function* whole(
  repository: Repository,
  root: DirectoryEntry,
  at: string,
  kind: 'added' | 'removed',
): AsyncGenerator<TreeChange> {
  for await (const { entry, path } of walkTree(repository, root, { path: at })) {
    yield kind === 'added' ? { kind, path, after: entry } : { kind, path, before: entry };
  }
}

/** Kopia replaces bytes that are not UTF-8, so two names may look the same. */
function isOtherName({ extra: before }: DirectoryEntry, { extra: after }: DirectoryEntry): boolean {
  try {
    const [old, young] = [rawNameIn(before), rawNameIn(after)];
    return old !== undefined && young !== undefined && !old.equals(young);
  } catch {
    return false;
  }
}

/** Ignores a directory's time, which only shows that its entries have changed. */
function hasSameAttributes(a: DirectoryEntry, b: DirectoryEntry): boolean {
  const isSame = a.mode === b.mode && a.uid === b.uid && a.gid === b.gid;
  return isSame && (a.type === 'd' || a.mtimeNs === b.mtimeNs);
}
