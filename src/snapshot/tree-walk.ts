import { CodedError, mapLimited } from '../base/index.ts';
import {
  isDirectoryObject,
  lengthOf,
  listPieces,
  objectId,
  type ObjectId,
  readObject,
  type Repository,
} from '../repository/index.ts';
import { decodeDirectory, type DirectoryEntry } from './directory.ts';
import { getSnapshot } from './snapshot-manifest.ts';

export interface WalkedEntry {
  readonly entry: DirectoryEntry;
  /** Relative to the root, '' for the root itself. */
  readonly path: string;
}

/** Entries of a directory object. Throws `BAD_DIRECTORY` and what reading throws. */
export async function readDirectory(
  repository: Repository,
  id: ObjectId,
): Promise<DirectoryEntry[]> {
  return decodeDirectory(await readObject(repository.contents, id)).entries;
}

/** The root and everything below, parents first, in stored order. */
export async function* walkTree(
  repository: Repository,
  root: DirectoryEntry,
  path = '',
): AsyncGenerator<WalkedEntry> {
  yield { entry: root, path };
  if (root.type !== 'd') return;
  for (const child of await readDirectory(repository, root.objectId)) {
    yield* walkTree(repository, child, path === '' ? child.name : `${path}/${child.name}`);
  }
}

/** Directories read at once by {@link forEachObject}. */
const DIRECTORIES_AT_ONCE = 8;

/** Calls back once for each different object below the roots; directories before what is in them. */
export async function forEachObject(
  repository: Repository,
  roots: readonly DirectoryEntry[],
  callback: (entry: DirectoryEntry) => Promise<void>,
): Promise<void> {
  const seen = new Set<string>();
  let level = roots.filter(({ objectId }) => !seen.has(objectId) && seen.add(objectId));
  while (level.length > 0) {
    const below: DirectoryEntry[] = [];
    await mapLimited(level, DIRECTORIES_AT_ONCE, async (entry) => {
      await callback(entry);
      if (entry.type !== 'd') return;
      for (const child of await readDirectory(repository, entry.objectId)) {
        if (seen.has(child.objectId)) continue;
        seen.add(child.objectId);
        below.push(child);
      }
    });
    level = below;
  }
}

/**
 * What a user means by `snapshot-id`, `object-id` or either with `/sub/path`.
 * Throws `SNAPSHOT_NOT_FOUND`, `PATH_NOT_FOUND`, `BAD_OBJECT_ID`.
 */
export async function resolveEntry(repository: Repository, text: string): Promise<DirectoryEntry> {
  const [id = '', ...path] = text.split('/');
  let entry = await resolveRoot(repository, id);
  for (const [depth, name] of path.entries()) {
    if (name === '') continue;
    const children = entry.type === 'd' ? await readDirectory(repository, entry.objectId) : [];
    const child = children.find((candidate) => candidate.name === name);
    if (!child) {
      const shown = path.slice(0, depth + 1).join('/');
      throw new CodedError('PATH_NOT_FOUND', `there is no ${shown} in ${id}`);
    }
    entry = child;
  }
  return entry;
}

async function resolveRoot(repository: Repository, id: string): Promise<DirectoryEntry> {
  // A snapshot id has the form of a content id too; snapshots come first.
  if (/^[0-9a-f]{32}$/.test(id)) {
    const known = await repository.manifests.find({ type: 'snapshot' });
    if (known.some((manifest) => manifest.id === id)) {
      const { rootEntry } = await getSnapshot(repository, id);
      if (rootEntry) return rootEntry;
      throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${id} has no root`);
    }
  }
  return objectEntry(repository, id);
}

async function objectEntry(repository: Repository, id: string): Promise<DirectoryEntry> {
  const object = objectId(id);
  const plain = { name: id, mtimeNs: 0n, uid: 0, gid: 0, objectId: object };
  if (isDirectoryObject(object)) return { ...plain, type: 'd', mode: 0o755, size: 0 };
  const size = lengthOf(await listPieces(repository.contents, object));
  return { ...plain, type: 'f', mode: 0o644, size };
}
