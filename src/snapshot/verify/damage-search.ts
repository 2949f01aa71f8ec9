import { isCode, mapLimited } from '../../base/index.ts';
import {
  assertAnswers,
  type ObjectId,
  type Repository,
  visitContents,
} from '../../repository/index.ts';
import type { DirectoryEntry } from '../directory/directory.ts';
import { streamDirectory } from '../directory/directory-stream.ts';
import { ObjectIdSet } from '../key-set.ts';
import type { Snapshot } from '../snapshot-manifest.ts';

/** Subdirectories of one directory searched in parallel. Our choice. */
const DIRECTORIES_AT_ONCE = 4;
/** Below this depth, directories are searched in sequence: 16 in parallel are enough. */
const DEPTH_BESIDE_MAX = 2;
/** Maximum snapshots and paths to name, for any amount of damage. Our choice. */
const SNAPSHOTS_MAX = 100;
const PATHS_MAX = 20;

/** A snapshot that cannot be fully restored. */
export interface DamagedSnapshot {
  readonly snapshot: Snapshot;
  /** The first damaged files and directories. Directories end in `/`, and the root is `/`. */
  readonly paths: readonly string[];
  /** More paths are damaged. */
  readonly hasMore: boolean;
}

export interface DamageSearchResult {
  /** In the order of the given snapshots. */
  readonly damaged: readonly DamagedSnapshot[];
  /** Damaged snapshots that are not in `damaged`. */
  readonly notNamed: number;
}

/**
 * Finds the snapshots and files affected by the damage that the repository knows. Searches an
 * undamaged object once, even if many snapshots share it. Holds about 25 bytes for each directory
 * and each object of several contents. Throws `CANCELED`, and storage errors if the storage is
 * unreachable.
 */
export async function searchDamage(
  repository: Repository,
  snapshots: readonly Snapshot[],
  signal: AbortSignal,
): Promise<DamageSearchResult> {
  const search = new DamageSearch(repository, signal);
  const damaged: DamagedSnapshot[] = [];
  let notNamed = 0;
  for (const snapshot of snapshots) {
    if (!snapshot.rootEntry) continue;
    const hits = new Hits();
    await search.visit(snapshot.rootEntry, '', hits);
    if (hits.count === 0) continue;
    if (damaged.length < SNAPSHOTS_MAX) {
      damaged.push({ snapshot, paths: hits.paths.sort(), hasMore: hits.count > hits.paths.length });
    } else notNamed++;
  }
  return { damaged, notNamed };
}

class Hits {
  readonly paths: string[] = [];
  count = 0;

  /** A single hit beyond the named paths is enough to set `hasMore`. */
  get isFull(): boolean {
    return this.count > PATHS_MAX;
  }

  add(path: string): void {
    this.count++;
    if (this.paths.length < PATHS_MAX) this.paths.push(path);
  }
}

interface Place {
  readonly path: string;
  readonly hits: Hits;
  readonly depth: number;
}

class DamageSearch {
  readonly #repository: Repository;
  readonly #signal: AbortSignal;
  readonly #whole = new ObjectIdSet();

  constructor(repository: Repository, signal: AbortSignal) {
    this.#repository = repository;
    this.#signal = signal;
  }

  /** Returns whether the entry and everything below it is undamaged. */
  async visit(entry: DirectoryEntry, path: string, hits: Hits, depth = 0): Promise<boolean> {
    this.#signal.throwIfAborted();
    const { type, objectId } = entry;
    if (this.#whole.has(objectId)) return true;
    let isWhole = await this.#isObjectWhole(objectId);
    if (type === 'd') {
      // Search below a damaged directory too: some damage is only assumed, so it may be readable.
      const isReadable = await this.#visitBelow(objectId, { path, hits, depth });
      if (!isWhole || isReadable === undefined) hits.add(`${path}/`);
      isWhole &&= isReadable === true;
    } else if (!isWhole) hits.add(path);
    // An object of one content costs less to look up than to remember.
    if (isWhole && (type === 'd' || objectId.startsWith('I'))) this.#whole.add(objectId);
    return isWhole;
  }

  /** Whether everything below a directory is undamaged. Undefined if it is unreadable. */
  async #visitBelow(id: ObjectId, { path, hits, depth }: Place): Promise<boolean | undefined> {
    const { contents } = this.#repository;
    const atOnce = depth < DEPTH_BESIDE_MAX ? DIRECTORIES_AT_ONCE : 1;
    let isWhole = true;
    try {
      for await (const entries of streamDirectory(contents, id, { signal: this.#signal })) {
        await mapLimited(entries, atOnce, async (entry) => {
          if (hits.isFull) isWhole = false;
          else if (!(await this.visit(entry, `${path}/${entry.name}`, hits, depth + 1)))
            isWhole = false;
        });
        if (hits.isFull) return false;
      }
      return isWhole;
    } catch (error) {
      await this.#assertDamage(error);
      return undefined;
    }
  }

  async #isObjectWhole(id: ObjectId): Promise<boolean> {
    const { contents } = this.#repository;
    let isWhole = true;
    try {
      await visitContents(contents, id, (contentId) => {
        // A content marked as deleted still exists.
        const entry = contents.find(contentId);
        isWhole &&= entry !== undefined && !contents.damaged.has(entry);
      });
      return isWhole;
    } catch (error) {
      await this.#assertDamage(error);
      return false;
    }
  }

  async #assertDamage(error: unknown): Promise<void> {
    this.#signal.throwIfAborted();
    await assertAnswers(this.#repository, error);
    const codes = ['DAMAGED_BLOB', 'CONTENT_NOT_FOUND', 'BAD_OBJECT', 'BAD_DIRECTORY'];
    if (!isCode(error, ...codes)) throw error;
  }
}
