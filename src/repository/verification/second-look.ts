import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { entriesByPack } from './entries-by-pack.ts';

/**
 * Packs whose entries are held together at most. Our choice: each group costs one pass over the
 * index.
 */
const PACKS_AT_ONCE = 256;

export interface SecondLookOptions {
  readonly signal: AbortSignal;
  /** Entries held at once. */
  readonly entriesMax: number;
  /** Whether no pack is to be begun any more. */
  readonly isOver: () => boolean;
  /** Reads what these entries of a pack name. */
  readonly verify: (packBlobId: string, entries: IndexEntry[]) => Promise<void>;
}

/**
 * Packs that an earlier verification has found damaged, and that are read once more: somebody may
 * have restored them. They are taken in the order of their names from a random one on, so that a
 * time that does not suffice for all of them reaches others each time.
 */
export class SecondLook {
  /**
   * How many entries the index has of each that is still to be read, as far as they were counted.
   */
  readonly #waiting: Map<string, number>;
  readonly #read = new Set<string>();
  readonly #onRead: (packBlobId: string) => void;

  /**
   * `packs`: those that the storage has. `onRead` is called once for each that was read completely.
   */
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

  /** To be called for each entry of the index. */
  count(packBlobId: string): void {
    const count = this.#waiting.get(packBlobId);
    if (count !== undefined) this.#waiting.set(packBlobId, count + 1);
  }

  hasRead(packBlobId: string): boolean {
    return this.#read.has(packBlobId);
  }

  /** Takes note of a pack that was read completely, here or elsewhere. */
  done(packBlobId: string): void {
    if (!this.#waiting.delete(packBlobId)) return;
    this.#read.add(packBlobId);
    this.#onRead(packBlobId);
  }

  /**
   * Reads what waits, until the time is over. Throws what `verify` throws, and the reason of the
   * signal.
   */
  async read(repository: Repository, options: SecondLookOptions): Promise<void> {
    while (this.#waiting.size > 0 && !options.isOver()) {
      await this.#readGroup(repository, this.#nextGroup(options.entriesMax), options);
    }
  }

  /** At least one pack; others with it as long as their entries have room. */
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
    { signal, entriesMax, isOver, verify }: SecondLookOptions,
  ): Promise<void> {
    const isWanted = (pack: string): boolean => group.has(pack);
    let [after, isFirst]: [IndexEntry['contentId'] | undefined, boolean] = [undefined, true];
    do {
      // A pack may have more entries than there is room for, also since others write while we read.
      const part = await entriesByPack(repository, { signal, isWanted, after, entriesMax });
      after = part.after;
      for (const pack of group) {
        // Once it is begun with, it is read to its end.
        if (isFirst && isOver()) group.delete(pack);
        else await verify(pack, part.packs.get(pack)?.entries() ?? []);
        if (after === undefined && group.has(pack)) this.done(pack);
      }
      isFirst = false;
    } while (after !== undefined && group.size > 0);
  }
}
