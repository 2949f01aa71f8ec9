import { type Nanoseconds, SECOND_NS } from '../base/index.ts';
import type { ObjectId } from '../repository/index.ts';
import type { DirectoryEntry, NewSnapshot, Snapshot } from '../snapshot/index.ts';
import { plainName, type SourceEntry } from './listing.ts';

/** File systems that keep whole seconds only round up to two of them (FAT); others keep what the kernel's last tick was (100 Hz). */
const COARSE_TICK_NS = 2n * SECOND_NS;
const TICK_NS = 10_000_000n;
/** Clocks of file servers are ahead by less. Our choice. */
const AHEAD_NS = 24n * 3_600n * SECOND_NS;

/** When an earlier snapshot read the files that it holds. */
export interface ReadTime {
  /** None was read as it had been before. */
  readonly startNs: Nanoseconds;
  readonly endNs: Nanoseconds;
}

/** A directory of an earlier snapshot. */
export interface PreviousDirectory {
  readonly id: ObjectId;
  readonly read: ReadTime;
}

/** On snapshots whose source was itself a snapshot: when that one was taken, in nanoseconds since 1970. */
export const FROZEN_TAG = 'tag:longshore-frozen-at';

/** The files of a source that stands still are read as they were then, however long after. */
export function readTimeOf({
  startTimeNs,
  endTimeNs: endNs,
  tags,
}: Pick<NewSnapshot, 'startTimeNs' | 'endTimeNs' | 'tags'>): ReadTime {
  const frozen = tags?.[FROZEN_TAG];
  const frozenNs = frozen !== undefined && /^\d{1,19}$/.test(frozen) ? BigInt(frozen) : startTimeNs;
  return { startNs: frozenNs < startTimeNs ? frozenNs : startTimeNs, endNs };
}

/** Of snapshots of directories, in the same order. */
export const previousRoots = (snapshots: readonly Snapshot[]): PreviousDirectory[] =>
  snapshots.flatMap((snapshot) => {
    const { rootEntry: root } = snapshot;
    return root?.type === 'd' ? [{ id: root.objectId, read: readTimeOf(snapshot) }] : [];
  });

/**
 * Whether a file or link that has this time still would have another one, had it changed after it was read. Two changes within a
 * tick of the file system's clock have one time. A time that was set, and that the clock has yet to come to, changes as well.
 */
export function tellsChanges(mtimeNs: Nanoseconds, { startNs, endNs }: ReadTime): boolean {
  const tickNs = mtimeNs % SECOND_NS === 0n ? COARSE_TICK_NS : TICK_NS;
  return mtimeNs < startNs - tickNs || mtimeNs > endNs + AHEAD_NS;
}

/** The same of all times up to the latest one, whatever ticks they were taken by. */
export const allTellChanges = (latestNs: Nanoseconds, { startNs }: ReadTime): boolean =>
  latestNs < startNs - COARSE_TICK_NS;

/** What an earlier snapshot holds of a directory, or of a part of it. */
export interface PreviousList {
  readonly entries: readonly DirectoryEntry[];
  readonly read: ReadTime;
}

/** What previous snapshots hold of one directory, the newest complete one first. */
export class PreviousEntries {
  readonly #lists: readonly {
    readonly byName: Map<string, DirectoryEntry>;
    readonly read: ReadTime;
  }[];

  constructor(lists: readonly PreviousList[]) {
    this.#lists = lists.map(({ entries, read }) => ({
      byName: new Map(entries.map((entry) => [entry.name, entry])),
      read,
    }));
  }

  directories(entryName: string): PreviousDirectory[] {
    const name = plainName(entryName);
    const found = new Map<ObjectId, PreviousDirectory>();
    for (const { byName, read } of this.#lists) {
      const entry = byName.get(name);
      if (entry?.type !== 'd') continue;
      const id = entry.objectId;
      const known = found.get(id);
      // The later one looked at the same files again.
      if (!known || known.read.startNs < read.startNs) found.set(id, { id, read });
    }
    return [...found.values()];
  }

  /** The entry with the same metadata; its object is taken over without reading the file. */
  unchanged(entry: SourceEntry): DirectoryEntry | undefined {
    // What is stored of a name that is not UTF-8 comes back without its mark.
    const name = typeof entry.rawName === 'string' ? entry.name : plainName(entry.name);
    for (const { byName, read } of this.#lists) {
      const before = byName.get(name);
      if (
        before?.type === entry.type &&
        before.mtimeNs === entry.mtimeNs &&
        before.size === entry.sizeBytes &&
        before.mode === entry.mode &&
        before.uid === entry.uid &&
        before.gid === entry.gid &&
        tellsChanges(entry.mtimeNs, read)
      ) {
        return before;
      }
    }
    return undefined;
  }
}
