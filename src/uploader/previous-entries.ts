import type { ObjectId } from '../repository/index.ts';
import type { DirectoryEntry } from '../snapshot/index.ts';
import { plainName, type SourceEntry } from './listing.ts';

/** What previous snapshots hold of one directory, the newest complete one first. */
export class PreviousEntries {
  readonly #byName: readonly Map<string, DirectoryEntry>[];

  constructor(lists: readonly (readonly DirectoryEntry[])[]) {
    this.#byName = lists.map((entries) => new Map(entries.map((entry) => [entry.name, entry])));
  }

  directories(entryName: string): ObjectId[] {
    const name = plainName(entryName);
    const ids = this.#byName.flatMap((entries) => {
      const entry = entries.get(name);
      return entry?.type === 'd' ? [entry.objectId] : [];
    });
    return [...new Set(ids)];
  }

  /** The entry with the same metadata; its object is taken over without reading the file. */
  unchanged(entry: SourceEntry): DirectoryEntry | undefined {
    // What is stored of a name that is not UTF-8 comes back without its mark.
    const name = typeof entry.rawName === 'string' ? entry.name : plainName(entry.name);
    for (const entries of this.#byName) {
      const before = entries.get(name);
      if (
        before?.type === entry.type &&
        before.mtimeNs === entry.mtimeNs &&
        before.size === entry.sizeBytes &&
        before.mode === entry.mode &&
        before.uid === entry.uid &&
        before.gid === entry.gid
      ) {
        return before;
      }
    }
    return undefined;
  }
}
