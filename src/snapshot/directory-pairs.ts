import { compareEntries, type DirectoryEntry } from './directory.ts';

/** One name in two directories, or in one of them. */
export interface EntryPair {
  readonly before?: DirectoryEntry | undefined;
  readonly after?: DirectoryEntry | undefined;
}

/**
 * Entries of each side whose names the other has not had yet. Directories are sorted, but names
 * with a replaced byte are not in their place. Our choice.
 */
const HELD_MAX = 8192;

type Batches = AsyncGenerator<readonly DirectoryEntry[], unknown>;

/** One of the two directories, of which a part is in memory. */
class Side {
  /** By name, oldest first. */
  readonly held = new Map<string, DirectoryEntry>();
  readonly #batches: Batches;
  #batch: readonly DirectoryEntry[] = [];
  #at = 0;
  #isEnded = false;

  constructor(batches: Batches) {
    this.#batches = batches;
  }

  /** The next entry, where it is in memory. */
  get head(): DirectoryEntry | undefined {
    return this.#batch[this.#at];
  }

  /** The next entry, undefined at the end. */
  async peek(): Promise<DirectoryEntry | undefined> {
    while (this.#at >= this.#batch.length && !this.#isEnded) {
      const { value, done } = await this.#batches.next();
      this.#isEnded = done === true;
      this.#batch = done === true ? [] : value;
      this.#at = 0;
    }
    return this.head;
  }

  /** Goes past the entry that was peeked at, which waits for its name on the other side. */
  hold(entry: DirectoryEntry): void {
    this.skip();
    this.held.set(entry.name, entry);
  }

  skip(): void {
    this.#at++;
  }

  /** What is held of a name, once. */
  take(name: string): DirectoryEntry | undefined {
    const entry = this.held.get(name);
    if (entry) this.held.delete(name);
    return entry;
  }

  /** The oldest that is held, where more are held than may be. */
  takeOldest(heldMax: number): DirectoryEntry | undefined {
    if (this.held.size <= heldMax) return undefined;
    const [oldest] = this.held.values();
    return oldest && this.take(oldest.name);
  }

  async close(): Promise<void> {
    await this.#batches.return(undefined);
  }
}

/**
 * Goes through two directories beside each other, by name. No more than a part of each is in
 * memory, however long they are: the one that is behind goes on. Names that only one of them has
 * may come later than their place is.
 */
export async function* pairEntries(
  batchesBefore: Batches,
  batchesAfter: Batches,
  heldMax = HELD_MAX,
): AsyncGenerator<EntryPair> {
  const [before, after] = [new Side(batchesBefore), new Side(batchesAfter)];
  try {
    for (;;) {
      const old = before.head ?? (await before.peek());
      const young = after.head ?? (await after.peek());
      if (!old && !young) break;
      const order = !old ? 1 : !young ? -1 : compareEntries(old, young);
      if (old && young && order === 0) {
        before.skip();
        after.skip();
        yield { before: old, after: young };
      } else if (old && order < 0) {
        const match = after.take(old.name);
        if (match) before.skip();
        else before.hold(old);
        if (match) yield { before: old, after: match };
      } else if (young) {
        const match = before.take(young.name);
        if (match) after.skip();
        else after.hold(young);
        if (match) yield { before: match, after: young };
      }
      const removed = before.takeOldest(heldMax);
      if (removed) yield { before: removed };
      const added = after.takeOldest(heldMax);
      if (added) yield { after: added };
    }
    for (const entry of before.held.values()) yield { before: entry };
    for (const entry of after.held.values()) yield { after: entry };
  } finally {
    await before.close();
    await after.close();
  }
}
