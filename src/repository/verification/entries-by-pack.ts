import { setImmediate } from 'node:timers/promises';
import type { ContentId } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';
import type { Repository } from '../repository.ts';
import { EntryList } from './entry-list.ts';

/** Rows read before yielding to the event loop. */
export const ROWS_AT_ONCE = 50_000;

/** The entries of one pack. */
export class PackEntries {
  /** A list for each key length. Only a damaged repository has more than one. */
  readonly #lists: EntryList[] = [];

  add(entry: IndexEntry): void {
    if (this.#lists.some((list) => list.add(entry))) return;
    const list = new EntryList(entry);
    list.add(entry);
    this.#lists.push(list);
  }

  /** Creates new objects at each call. */
  entries(): IndexEntry[] {
    return this.#lists.flatMap((list) => list.entries());
  }
}

export interface EntriesByPack {
  readonly packs: Map<string, PackEntries>;
  /** The content to continue after. Undefined at the end of the index. */
  readonly after: ContentId | undefined;
}

export interface EntriesByPackOptions {
  readonly signal: AbortSignal;
  readonly isWanted: (packBlobId: string) => boolean;
  readonly after?: ContentId | undefined;
  /** Stops after this many entries. Call again for the rest. */
  readonly entriesMax?: number;
}

/** The entries of some packs, by pack, in content order. Reads the index once, or a part of it. */
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
