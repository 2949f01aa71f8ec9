import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { entriesByPack } from './entries-by-pack.ts';

/** Maximum packs in a group. Each group costs one pass over the index. Our choice. */
const PACKS_AT_ONCE = 256;

export interface RereadOptions {
  readonly signal: AbortSignal;
  /** Maximum entries in memory. */
  readonly entriesMax: number;
  /** Whether to start no more packs. */
  readonly isOver: () => boolean;
  /** Verifies these entries of a pack. */
  readonly verify: (packBlobId: string, entries: IndexEntry[]) => Promise<void>;
}

/**
 * Reads packs again that an earlier verification found damaged, because they may have been
 * restored. Starts at a random name, so that runs with too little time reach different packs.
 */
export class Reread {
  /** Number of index entries of each unread pack, as counted so far. */
  readonly #waiting: Map<string, number>;
  readonly #read = new Set<string>();
  readonly #onRead: (packBlobId: string) => void;

  /** `packs` exist in the storage. `onRead` is called once for each completely read pack. */
  constructor(
    packs: readonly string[],
    { random }: Pick<Repository, 'random'>,
    onRead: (packBlobId: string) => void,
  ) {
    const names = [...packs].sort();
    const [high = 0, low = 0] = random(2);
    const first = Math.floor(((high * 256 + low) / 65_536) * names.length);
    const ordered = [...names.slice(first), ...names.slice(0, first)];
    this.#waiting = new Map(ordered.map((pack) => [pack, 0]));
    this.#onRead = onRead;
  }

  /** Call this for each entry of the index. */
  count(packBlobId: string): void {
    const count = this.#waiting.get(packBlobId);
    if (count !== undefined) this.#waiting.set(packBlobId, count + 1);
  }

  hasRead(packBlobId: string): boolean {
    return this.#read.has(packBlobId);
  }

  /** Records that a pack was read completely, here or elsewhere. */
  done(packBlobId: string): void {
    if (!this.#waiting.delete(packBlobId)) return;
    this.#read.add(packBlobId);
    this.#onRead(packBlobId);
  }

  /** Reads the remaining packs until time is up. Throws errors of `verify` and the signal. */
  async read(repository: Repository, options: RereadOptions): Promise<void> {
    while (this.#waiting.size > 0 && !options.isOver()) {
      await this.#readGroup(repository, this.#nextGroup(options.entriesMax), options);
    }
  }

  /** At least one pack, and more as long as their entries fit. */
  #nextGroup(entriesMax: number): Set<string> {
    const group = new Set<string>();
    let entries = 0;
    for (const [pack, count] of this.#waiting) {
      entries += count;
      if (group.size > 0 && (entries > entriesMax || group.size === PACKS_AT_ONCE)) break;
      group.add(pack);
    }
    return group;
  }

  async #readGroup(
    repository: Repository,
    group: Set<string>,
    { signal, entriesMax, isOver, verify }: RereadOptions,
  ): Promise<void> {
    const isWanted = (pack: string): boolean => group.has(pack);
    let [after, isFirst]: [IndexEntry['contentId'] | undefined, boolean] = [undefined, true];
    do {
      // A pack may have more entries than fit, also because other clients write meanwhile.
      const part = await entriesByPack(repository, { signal, isWanted, after, entriesMax });
      after = part.after;
      for (const pack of group) {
        // A pack that was started is read to its end.
        if (isFirst && isOver()) group.delete(pack);
        else await verify(pack, part.packs.get(pack)?.entries() ?? []);
        if (after === undefined && group.has(pack)) this.done(pack);
      }
      isFirst = false;
    } while (after !== undefined && group.size > 0);
  }
}
