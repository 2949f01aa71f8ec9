import { setImmediate } from 'node:timers/promises';
import type { ContentId } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { EntryList } from './entry-list.ts';

/** Rows looked at between two looks at the event loop. */
export const ROWS_AT_ONCE = 50_000;

/** The entries of one pack. */
export class PackEntries {
  /** One for each length of keys; that is one, but in a repository that is damaged. */
  readonly #lists: EntryList[] = [];

  add(entry: IndexEntry): void {
    if (this.#lists.some((list) => list.add(entry))) return;
    const list = new EntryList(entry);
    list.add(entry);
    this.#lists.push(list);
  }

  /** As objects, made anew for each call. */
  entries(): IndexEntry[] {
    return this.#lists.flatMap((list) => list.entries());
  }
}

export interface EntriesByPack {
  readonly packs: Map<string, PackEntries>;
  /** The content behind which to go on; undefined at the end of the index. */
  readonly after: ContentId | undefined;
}

export interface EntriesByPackOptions {
  readonly signal: AbortSignal;
  readonly isWanted: (packBlobId: string) => boolean;
  readonly after?: ContentId | undefined;
  /** With so many entries it stops, so that the rest can be had with another call. */
  readonly entriesMax?: number;
}

/**
 * The entries of some packs, by pack, in the order of their contents. One pass over the index, or
 * the first part of one.
 */
export async function entriesByPack(
  { contents }: Repository,
  { signal, isWanted, after: from, entriesMax = Infinity }: EntriesByPackOptions,
): Promise<EntriesByPack> {
  const packs = new Map<string, PackEntries>();
  let count = 0;
  for (let after = from; ;) {
    let rows = 0;
    for (const entry of contents.entries({ after })) {
      after = entry.contentId;
      const { packBlobId } = entry;
      if (packBlobId !== '' && isWanted(packBlobId)) {
        let list = packs.get(packBlobId);
        if (!list) packs.set(packBlobId, (list = new PackEntries()));
        list.add(entry);
        if (++count === entriesMax) return { packs, after };
      }
      if (++rows === ROWS_AT_ONCE) break;
    }
    if (rows < ROWS_AT_ONCE) return { packs, after: undefined };
    await setImmediate();
    signal.throwIfAborted();
  }
}
