import { CodedError, Semaphore } from '../base/index.ts';
import {
  isDirectoryObject,
  lengthOf,
  listPieces,
  objectId,
  type ObjectId,
  parseObjectId,
  type Repository,
} from '../repository/index.ts';
import type { DirectoryEntry, DirectorySummary } from './directory.ts';
import { streamDirectory } from './directory-stream.ts';
import { ObjectIdSet } from './key-set.ts';
import { getSnapshot, noSuchSnapshot } from './snapshot-manifest.ts';
import { findSnapshotId } from './snapshot-name.ts';
import type { SourceInfo } from './source.ts';

export interface WalkedEntry {
  readonly entry: DirectoryEntry;
  /** Relative to the root, '' for the root itself. */
  readonly path: string;
}

/** All entries of a directory object: only where their number does not matter. Throws `BAD_DIRECTORY` and what reading throws. */
export async function readDirectory(
  repository: Repository,
  id: ObjectId,
): Promise<DirectoryEntry[]> {
  const entries: DirectoryEntry[] = [];
  for await (const batch of streamDirectory(repository.contents, id)) {
    for (const entry of batch) entries.push(entry);
  }
  return entries;
}

/** The root and everything below, parents first, in stored order. */
export async function* walkTree(
  repository: Repository,
  root: DirectoryEntry,
  path = '',
): AsyncGenerator<WalkedEntry> {
  yield { entry: root, path };
  if (root.type !== 'd') return;
  for await (const children of streamDirectory(repository.contents, root.objectId)) {
    for (const child of children) {
      yield* walkTree(repository, child, path === '' ? child.name : `${path}/${child.name}`);
    }
  }
}

/** Objects visited at once, and directories read at once, by {@link forEachObject} and {@link walkDirectories}. */
const DIRECTORIES_AT_ONCE = 8;

/**
 * Calls back for each entry below the roots: with entries as their directory is read, with what is below a
 * directory after that. `isNew` says once for each directory whether it is entered. What is held at a time is
 * part of each directory on the way down, however many entries there are.
 */
export async function walkDirectories(
  { contents }: Repository,
  roots: readonly ObjectId[],
  options: {
    signal?: AbortSignal | undefined;
    isNew: (entry: DirectoryEntry) => boolean;
    visit: (entry: DirectoryEntry) => Promise<void> | void;
  },
): Promise<void> {
  const places = new Semaphore(DIRECTORIES_AT_ONCE - 1);
  const failures: unknown[] = [];
  const visits = new Set<Promise<void>>();
  const track = async (visit: Promise<void>): Promise<void> => {
    const done = visit
      .catch((error: unknown) => {
        failures.push(error);
      })
      .finally(() => visits.delete(done));
    visits.add(done);
    if (visits.size >= DIRECTORIES_AT_ONCE) await Promise.race(visits);
  };
  const enter = async (id: ObjectId): Promise<void> => {
    for await (const entries of streamDirectory(contents, id, { signal: options.signal })) {
      const below: ObjectId[] = [];
      for (const entry of entries) {
        if (failures.length > 0) return;
        options.signal?.throwIfAborted();
        const visited = options.visit(entry);
        if (visited) await track(visited);
        if (entry.type === 'd' && options.isNew(entry)) below.push(entry.objectId);
      }
      await descend(below);
    }
  };
  /** Beside each other while there is room, else in this very line of descent. */
  const descend = async (ids: readonly ObjectId[]): Promise<void> => {
    const beside: Promise<void>[] = [];
    const run = async (id: ObjectId): Promise<void> => {
      try {
        await enter(id);
      } catch (error) {
        failures.push(error);
      }
    };
    for (const id of ids) {
      if (failures.length > 0) break;
      if (!places.tryAcquire()) await run(id);
      else {
        const released = run(id).finally(() => {
          places.release();
        });
        beside.push(released);
      }
    }
    await Promise.all(beside);
  };
  await descend(roots);
  await Promise.all(visits);
  if (failures.length > 0) throw failures[0];
}

/** What calls of {@link forEachObject} have been at: objects, and directories whose entries were looked at too. */
export class VisitedObjects {
  readonly seen = new ObjectIdSet();
  readonly entered = new ObjectIdSet();
}

/**
 * Calls back once for each different object below the roots; directories before what is in them. What was `visited` by an
 * earlier call is left out; a call that failed has not visited all that it says.
 */
export async function forEachObject(
  repository: Repository,
  roots: readonly DirectoryEntry[],
  callback: (entry: DirectoryEntry) => Promise<void>,
  { seen, entered }: VisitedObjects = new VisitedObjects(),
): Promise<void> {
  const visit = (entry: DirectoryEntry): Promise<void> | void => {
    if (seen.add(entry.objectId)) return callback(entry);
  };
  for (const root of roots) await visit(root);
  const isNew = ({ type, objectId: id }: DirectoryEntry): boolean =>
    type === 'd' && entered.add(id);
  await walkDirectories(
    repository,
    roots.filter(isNew).map((entry) => entry.objectId),
    { isNew, visit },
  );
}

/**
 * What a user means by a snapshot's name ({@link findSnapshotId}), `object-id` or either with `/sub/path`.
 * Throws `SNAPSHOT_NOT_FOUND`, `AMBIGUOUS_SNAPSHOT`, `PATH_NOT_FOUND`, `BAD_SNAPSHOT_NAME`.
 */
export async function resolveEntry(
  repository: Repository,
  text: string,
  source?: SourceInfo,
): Promise<DirectoryEntry> {
  const [id = '', ...path] = text.split('/');
  let entry = await resolveRoot(repository, id, source);
  for (const [depth, name] of path.entries()) {
    if (name === '') continue;
    const child =
      entry.type === 'd' ? await findChild(repository, entry.objectId, name) : undefined;
    if (!child) {
      const shown = path.slice(0, depth + 1).join('/');
      throw new CodedError('PATH_NOT_FOUND', `there is no ${shown} in ${id}`);
    }
    entry = child;
  }
  return entry;
}

async function findChild(
  { contents }: Repository,
  id: ObjectId,
  name: string,
): Promise<DirectoryEntry | undefined> {
  for await (const entries of streamDirectory(contents, id)) {
    const child = entries.find((candidate) => candidate.name === name);
    if (child) return child;
  }
  return undefined;
}

async function resolveRoot(
  repository: Repository,
  name: string,
  source: SourceInfo | undefined,
): Promise<DirectoryEntry> {
  // A snapshot id has the form of a content id too; snapshots come first.
  const id = await findSnapshotId(repository, name, source);
  if (id === undefined) return objectEntry(repository, name);
  const { rootEntry, incomplete } = await getSnapshot(repository, id);
  if (!rootEntry) throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${id} has no root`);
  return incomplete === undefined ? rootEntry : asIncomplete(rootEntry, incomplete);
}

/** The checkpoint of a single file has no summary that would say it. */
function asIncomplete(root: DirectoryEntry, incomplete: string): DirectoryEntry {
  const { size, mtimeNs, type } = root;
  const [files, dirs] = type === 'd' ? [0, 1] : [1, 0];
  const counts = { size, files, symlinks: 0, dirs, numFailed: 0 };
  const summary: DirectorySummary = root.summary ?? { ...counts, maxTimeNs: mtimeNs };
  return { ...root, summary: { ...summary, incomplete: summary.incomplete ?? incomplete } };
}

async function objectEntry(repository: Repository, id: string): Promise<DirectoryEntry> {
  const object = parseName(id);
  if (!repository.contents.find(parseObjectId(object).contentId)) {
    // Most who name one mean a snapshot that is gone, and nothing is lost.
    throw new CodedError('SNAPSHOT_NOT_FOUND', `there is no snapshot and no object ${id}`);
  }
  const plain = { name: id, mtimeNs: 0n, uid: 0, gid: 0, objectId: object };
  if (isDirectoryObject(object)) return { ...plain, type: 'd', mode: 0o755, size: 0 };
  const size = lengthOf(await listPieces(repository.contents, object));
  return { ...plain, type: 'f', mode: 0o644, size };
}

function parseName(text: string): ObjectId {
  try {
    return objectId(text);
  } catch (cause) {
    if (/^[0-9a-f]+$/.test(text)) throw noSuchSnapshot(text);
    const message = `"${text.slice(0, 80)}" is neither the name of a snapshot nor the ID of an object`;
    throw new CodedError('BAD_SNAPSHOT_NAME', message, { cause });
  }
}
