import { type Nanoseconds, SECOND_NS } from '../base/index.ts';
import type { ObjectId } from '../repository/index.ts';
import type { DirectoryEntry, Snapshot } from '../snapshot/index.ts';
import { plainName, type SourceEntry } from './listing.ts';

/** File systems that keep whole seconds only round up to two of them (FAT); others keep what the kernel's last tick was (100 Hz). */
const COARSE_TICK_NS = 2n * SECOND_NS;
const TICK_NS = 10_000_000n;

/** A directory of an earlier snapshot. */
export interface PreviousDirectory {
  readonly id: ObjectId;
  /** Start of the snapshot. */
  readonly startNs: Nanoseconds;
}

/** Of snapshots of directories, in the same order. */
export const previousRoots = (snapshots: readonly Snapshot[]): PreviousDirectory[] =>
  snapshots.flatMap(({ rootEntry: root, startTimeNs: startNs }) =>
    root?.type === 'd' ? [{ id: root.objectId, startNs }] : [],
  );

/**
 * Whether a file or link that has this time still would have another one, had it changed after a snapshot that began at `startNs` read
 * it. Two changes within a tick of the file system's clock have one time.
 */
export function tellsChanges(mtimeNs: Nanoseconds, startNs: Nanoseconds): boolean {
  const tickNs = mtimeNs % SECOND_NS === 0n ? COARSE_TICK_NS : TICK_NS;
  return mtimeNs < startNs - tickNs;
}

/** What an earlier snapshot holds of a directory, or of a part of it. */
export interface PreviousList {
  readonly entries: readonly DirectoryEntry[];
  readonly startNs: Nanoseconds;
}

/** What previous snapshots hold of one directory, the newest complete one first. */
export class PreviousEntries {
  readonly #lists: readonly {
    readonly byName: Map<string, DirectoryEntry>;
    readonly startNs: Nanoseconds;
  }[];

  constructor(lists: readonly PreviousList[]) {
    this.#lists = lists.map(({ entries, startNs }) => ({
      byName: new Map(entries.map((entry) => [entry.name, entry])),
      startNs,
    }));
  }

  directories(entryName: string): PreviousDirectory[] {
    const name = plainName(entryName);
    const found = new Map<ObjectId, PreviousDirectory>();
    for (const { byName, startNs } of this.#lists) {
      const entry = byName.get(name);
      if (entry?.type !== 'd') continue;
      const id = entry.objectId;
      const known = found.get(id);
      // The later one looked at the same files again.
      if (!known || known.startNs < startNs) found.set(id, { id, startNs });
    }
    return [...found.values()];
  }

  /** The entry with the same metadata; its object is taken over without reading the file. */
  unchanged(entry: SourceEntry): DirectoryEntry | undefined {
    // What is stored of a name that is not UTF-8 comes back without its mark.
    const name = typeof entry.rawName === 'string' ? entry.name : plainName(entry.name);
    for (const { byName, startNs } of this.#lists) {
      const before = byName.get(name);
      if (
        before?.type === entry.type &&
        before.mtimeNs === entry.mtimeNs &&
        before.size === entry.sizeBytes &&
        before.mode === entry.mode &&
        before.uid === entry.uid &&
        before.gid === entry.gid &&
        tellsChanges(entry.mtimeNs, startNs)
      ) {
        return before;
      }
    }
    return undefined;
  }
}
