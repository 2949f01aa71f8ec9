import { Semaphore } from '../base/index.ts';
import type { ObjectId, Repository } from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { streamDirectory } from './directory-stream.ts';

export interface WalkedEntry {
  readonly entry: DirectoryEntry;
  /** Below the path of the root. */
  readonly path: string;
  /** The directory of the entry; undefined for the root. */
  readonly parent: WalkedEntry | undefined;
}

/** Entries of one directory, a part at a time. */
export type Batches = AsyncIterable<readonly DirectoryEntry[]>;

export interface TreeWalk {
  /** Of the root; '' unless it is said. */
  readonly path?: string;
  readonly signal?: AbortSignal | undefined;
  /** What to go through of a directory at a path; the rest is left out with all below it. */
  readonly entriesOf?: ((path: string, batches: Batches) => Batches) | undefined;
}

/** A directory on the way down, of which a part is in memory. */
interface Level {
  readonly walked: WalkedEntry;
  readonly batches: AsyncIterator<readonly DirectoryEntry[]>;
  entries: readonly DirectoryEntry[];
  at: number;
}

/**
 * The root and everything below as often as it has a path, parents first, in stored order. What is
 * held is a part of each directory on the way down. Ends at the first directory that cannot be
 * read.
 */
export async function* walkTree(
  { contents }: Repository,
  root: DirectoryEntry,
  { path: rootPath = '', signal, entriesOf }: TreeWalk = {},
): AsyncGenerator<WalkedEntry> {
  // No generator for each level: every entry would go through all of them.
  const levels: Level[] = [];
  const open = (walked: WalkedEntry): Level => {
    const { entry, path } = walked;
    const all = streamDirectory(contents, entry.objectId, { signal });
    const batches = entriesOf ? entriesOf(path, all) : all;
    return { walked, batches: batches[Symbol.asyncIterator](), entries: [], at: 0 };
  };
  try {
    let walked: WalkedEntry | undefined = { entry: root, path: rootPath, parent: undefined };
    while (walked) {
      signal?.throwIfAborted();
      yield walked;
      if (walked.entry.type === 'd') levels.push(open(walked));
      walked = await nextOf(levels);
    }
  } finally {
    for (const { batches } of levels.reverse()) await batches.return?.();
  }
}

/** The next entry of the lowest level that has one; levels that have none are left. */
async function nextOf(levels: Level[]): Promise<WalkedEntry | undefined> {
  for (let level = levels.at(-1); level; level = levels.at(-1)) {
    const entry = level.entries[level.at++];
    if (entry) {
      const { path } = level.walked;
      const below = path === '' ? entry.name : `${path}/${entry.name}`;
      return { entry, path: below, parent: level.walked };
    }
    const batch = await level.batches.next();
    if (batch.done === true) levels.pop();
    else Object.assign(level, { entries: batch.value, at: 0 });
  }
  return undefined;
}

/** Visits under way at once, and directories read at once, by {@link walkDirectories}. */
const DIRECTORIES_AT_ONCE = 8;
/**
 * Directories that wait until the one that names them has been read to its end; with more it stays
 * open. Our choice.
 */
const WAITING_MAX = 8192;

export interface DirectoryWalk {
  readonly signal?: AbortSignal | undefined;
  /** Says once for each directory below the roots whether it is entered. */
  readonly isNew: (entry: DirectoryEntry) => boolean;
  /** Called for each entry; a few that have to wait do so beside each other. */
  readonly visit: (entry: DirectoryEntry) => Promise<unknown> | undefined;
  /**
   * Has a directory read, or leaves it out. Without it, and where it throws, a directory that
   * cannot be read ends the walk.
   */
  readonly enter?: (id: ObjectId, read: () => Promise<void>) => Promise<void>;
}

/**
 * Calls back for each entry below the roots, without its path: with entries as their directory is
 * read, with what is below a directory after that, several directories beside each other. What is
 * held is the ids of directories that wait, and a part of each that is being read or has many below
 * it, however many entries there are. Throws the first failure, when nothing is under way any more.
 */
export async function walkDirectories(
  { contents }: Repository,
  roots: readonly ObjectId[],
  { signal, isNew, visit, enter = (_id, read) => read() }: DirectoryWalk,
): Promise<void> {
  const failures: unknown[] = [];
  const visits = new Set<Promise<unknown>>();
  const track = async (visited: Promise<unknown>): Promise<void> => {
    const done = visited
      .catch((error: unknown) => {
        failures.push(error);
      })
      .finally(() => visits.delete(done));
    visits.add(done);
    if (visits.size >= DIRECTORIES_AT_ONCE) await Promise.race(visits);
  };
  const read = async (id: ObjectId, below: Below): Promise<void> => {
    for await (const entries of streamDirectory(contents, id, { signal })) {
      for (const entry of entries) {
        if (failures.length > 0) return;
        signal?.throwIfAborted();
        const visited = visit(entry);
        if (visited) await track(visited);
        if (entry.type === 'd' && isNew(entry)) below.ids.push(entry.objectId);
      }
      await below.whenMany();
    }
  };
  await descend(roots, (id, below) => enter(id, () => read(id, below)), failures);
  await Promise.all(visits);
  if (failures.length > 0) throw failures[0];
}

/** What is to be entered after a directory was read. */
interface Below {
  readonly ids: ObjectId[];
  /**
   * Enters what waits, when it is many: to be called from time to time while a directory is read.
   */
  readonly whenMany: () => Promise<void>;
}

/**
 * Reads directories, each followed by those that it adds to what is below, several beside each
 * other; `read` is called once for each. Failures are collected, and after the first no more are
 * begun. Returns when none is under way.
 */
async function descend(
  roots: readonly ObjectId[],
  read: (id: ObjectId, below: Below) => Promise<void>,
  failures: unknown[],
): Promise<void> {
  const places = new Semaphore(DIRECTORIES_AT_ONCE - 1);
  const run = async (id: ObjectId): Promise<void> => {
    try {
      const ids: ObjectId[] = [];
      const whenMany = async (): Promise<void> => {
        if (ids.length >= WAITING_MAX) await runAll(ids.splice(0));
      };
      await read(id, { ids, whenMany });
      await runAll(ids);
    } catch (error) {
      failures.push(error);
    }
  };
  /** Beside each other while there is room, else in this very line of descent. */
  const runAll = async (ids: readonly ObjectId[]): Promise<void> => {
    const beside: Promise<void>[] = [];
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
  await runAll(roots);
}
