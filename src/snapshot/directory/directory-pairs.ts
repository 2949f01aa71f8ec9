import { compareEntries, type DirectoryEntry } from './directory.ts';

/** A name that is in one or both of two directories. */
export interface EntryPair {
  readonly before?: DirectoryEntry | undefined;
  readonly after?: DirectoryEntry | undefined;
}

/**
 * Maximum entries of each side that wait for the same name on the other side. Directories are
 * sorted, but names with a replaced byte are out of place. Our choice.
 */
const HELD_MAX = 8192;

type Batches = AsyncGenerator<readonly DirectoryEntry[], unknown>;

/** A side of the comparison: one directory, partly in memory. */
class Side {
  /** Waiting entries by name, oldest first. */
  readonly held = new Map<string, DirectoryEntry>();
  readonly #batches: Batches;
  #batch: readonly DirectoryEntry[] = [];
  #at = 0;
  #isEnded = false;

  constructor(batches: Batches) {
    this.#batches = batches;
  }

  /** The next entry, if it is in memory. */
  get head(): DirectoryEntry | undefined {
    return this.#batch[this.#at];
  }

  /** The next entry, or undefined at the end. */
  async peek(): Promise<DirectoryEntry | undefined> {
    while (this.#at >= this.#batch.length && !this.#isEnded) {
      const { value, done } = await this.#batches.next();
      this.#isEnded = done === true;
      this.#batch = done === true ? [] : value;
      this.#at = 0;
    }
    return this.head;
  }

  /** Moves past the peeked entry, and keeps it until its name appears on the other side. */
  hold(entry: DirectoryEntry): void {
    this.skip();
    this.held.set(entry.name, entry);
  }

  skip(): void {
    this.#at++;
  }

  /** Removes and returns the waiting entry of a name. */
  take(name: string): DirectoryEntry | undefined {
    const entry = this.held.get(name);
    if (entry) this.held.delete(name);
    return entry;
  }

  /** Removes and returns the oldest waiting entry if more than `heldMax` wait. */
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
 * Pairs the entries of two directories by name. Only a part of each is in memory, because the side
 * that is behind advances. Names in only one directory may be yielded late.
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
