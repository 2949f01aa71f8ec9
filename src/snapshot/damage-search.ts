import { isCode, mapLimited } from '../base/index.ts';
import {
  assertAnswers,
  type ObjectId,
  type Repository,
  visitContents,
} from '../repository/index.ts';
import type { DirectoryEntry } from './directory.ts';
import { streamDirectory } from './directory-stream.ts';
import { ObjectIdSet } from './key-set.ts';
import type { Snapshot } from './snapshot-manifest.ts';

/** Subdirectories of one directory that are looked at beside each other. Our choice. */
const DIRECTORIES_AT_ONCE = 4;
/** Below so many levels they are looked at one after the other: 16 at once are enough. */
const DEPTH_BESIDE_MAX = 2;
/**
 * Snapshots and paths that are named: enough to see what is concerned, for any amount of damage.
 * Our choice.
 */
const SNAPSHOTS_MAX = 100;
const PATHS_MAX = 20;

/** A snapshot that cannot be restored completely. */
export interface DamagedSnapshot {
  readonly snapshot: Snapshot;
  /**
   * The first of its files and directories that are damaged; directories end in `/`, and the root
   * is `/`.
   */
  readonly paths: readonly string[];
  /** There are more. */
  readonly hasMore: boolean;
}

export interface DamageSearchResult {
  /** In the order of the snapshots. */
  readonly damaged: readonly DamagedSnapshot[];
  /** Damaged snapshots beyond those. */
  readonly notNamed: number;
}

/**
 * Which snapshots and which of their files the damage that is known to the repository concerns.
 * What is whole is looked at once, in however many snapshots it is; about 25 bytes are held for
 * each directory and each object of several contents. Throws `CANCELED`, and what the storage
 * throws when it does not answer.
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

  /** One more than are named is enough to know that there are more. */
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

  /** Returns whether all of it is whole. */
  async visit(entry: DirectoryEntry, path: string, hits: Hits, depth = 0): Promise<boolean> {
    this.#signal.throwIfAborted();
    const { type, objectId } = entry;
    if (this.#whole.has(objectId)) return true;
    let isWhole = await this.#isObjectWhole(objectId);
    if (type === 'd') {
      // What lies below one that is damaged may be readable all the same, where the damage is only
      // assumed.
      const isReadable = await this.#visitBelow(objectId, { path, hits, depth });
      if (!isWhole || isReadable === undefined) hits.add(`${path}/`);
      isWhole &&= isReadable === true;
    } else if (!isWhole) hits.add(path);
    // What is one content costs less to look up than to remember.
    if (isWhole && (type === 'd' || objectId.startsWith('I'))) this.#whole.add(objectId);
    return isWhole;
  }

  /** Whether all below a directory is whole; undefined where it cannot be read. */
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
        // One that is marked deleted is there.
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
