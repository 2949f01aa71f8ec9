import { Semaphore } from '../base/index.ts';
import type { ObjectId, Repository } from '../repository/index.ts';
import type { DirectoryEntry } from './directory/directory.ts';
import { streamDirectory } from './directory/directory-stream.ts';

export interface WalkedEntry {
  readonly entry: DirectoryEntry;
  /** Path below the root. */
  readonly path: string;
  /** The entry's directory. Undefined for the root. */
  readonly parent: WalkedEntry | undefined;
}

/** Entries of a directory in batches. */
export type Batches = AsyncIterable<readonly DirectoryEntry[]>;

export interface TreeWalk {
  /** Path of the root. The default is ''. */
  readonly path?: string;
  readonly signal?: AbortSignal | undefined;
  /** Selects a directory's entries. Omitted entries are skipped with everything below. */
  readonly entriesOf?: ((path: string, batches: Batches) => Batches) | undefined;
}

/** A directory on the way down, partly in memory. */
interface Level {
  readonly walked: WalkedEntry;
  readonly batches: AsyncIterator<readonly DirectoryEntry[]>;
  entries: readonly DirectoryEntry[];
  at: number;
}

/**
 * Yields the root and everything below it, parents first, in stored order. An object with several
 * paths is yielded several times. Holds only a part of each directory on the way down. Ends at the
 * first unreadable directory.
 */
export async function* walkTree(
  { contents }: Repository,
  root: DirectoryEntry,
  { path: rootPath = '', signal, entriesOf }: TreeWalk = {},
): AsyncGenerator<WalkedEntry> {
  // A stack instead of recursive generators, because each entry would pass through all of them.
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

/** The next entry of the lowest level that has any. Removes finished levels. */
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

/** Maximum visits and directory reads that {@link walkDirectories} runs in parallel. */
const DIRECTORIES_AT_ONCE = 8;
/**
 * Subdirectories collected while their parent is read. With more, they are entered while the parent
 * stays open. Our choice.
 */
const WAITING_MAX = 8192;

export interface DirectoryWalk {
  readonly signal?: AbortSignal | undefined;
  /** Called once for each directory below the roots. Returns whether to enter it. */
  readonly isNew: (entry: DirectoryEntry) => boolean;
  /** Called for each entry. A few returned promises run in parallel. */
  readonly visit: (entry: DirectoryEntry) => Promise<unknown> | undefined;
  /**
   * Reads a directory by calling `read`, or skips it. Without `enter`, or if it throws, an
   * unreadable directory ends the walk.
   */
  readonly enter?: (id: ObjectId, read: () => Promise<void>) => Promise<void>;
}

/**
 * Calls `visit` for each entry below the roots, without its path. Visits the entries of a directory
 * before those below it. Reads several directories in parallel. Holds the IDs of waiting
 * directories, and a part of each open directory, for any number of entries. Throws the first
 * failure after all calls have ended.
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

/** The subdirectories to enter after a directory was read. */
interface Below {
  readonly ids: ObjectId[];
  /** Enters the collected directories if they are many. Call it often while reading a directory. */
  readonly whenMany: () => Promise<void>;
}

/**
 * Reads directories, each followed by its collected subdirectories, several in parallel. Calls
 * `read` once for each. Collects failures, and starts no more directories after the first. Returns
 * when all reads have ended.
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
  /** Runs in parallel while there is room, otherwise within this call. */
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
