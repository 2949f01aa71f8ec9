import { type Nanoseconds, SECOND_NS } from '../base/index.ts';
import type { ObjectId } from '../repository/index.ts';
import type { DirectoryEntry, Snapshot } from '../snapshot/index.ts';
import { type KeptExtras, recordedIn, withNote } from '../volume-files/index.ts';
import type { SourceEntry } from './listing.ts';
import { keyOfEntry, keyOfName } from './restore-names.ts';

/**
 * Files that changed so shortly before they were read are read again by the next backup. Their time
 * is that of a tick (10 ms of the kernel, 2 s of FAT); stores into mapped memory set it once and
 * not again until the pages are written back, after 35 s by default (vm.dirty_expire_centisecs and
 * vm.dirty_writeback_centisecs); and a snapshot of the storage has a new time before the new data.
 * Our choice.
 */
const SETTLE_NS = 120n * SECOND_NS;
/**
 * Volumes of snapshots whose time is not known were taken within that time before they were read:
 * they stand in line. Our choice.
 */
const PREPARE_NS = 24n * 3600n * SECOND_NS;

/** A directory of an earlier snapshot. */
export interface PreviousDirectory {
  readonly id: ObjectId;
  /**
   * None of its files was read as it had been before that time. {@link UNCHANGING_NS} for the very
   * same source.
   */
  readonly startNs: Nanoseconds;
  /** What of the extra attributes its snapshot tells: an entry without any had none then. */
  readonly recorded: string;
}

/** A source that stands still while it is read, since it is a snapshot of the storage. */
export interface FrozenSource {
  /** When it was taken, or shortly before; undefined where nobody knows. */
  readonly atNs: Nanoseconds | undefined;
  /** Whether an earlier snapshot, perhaps one that was cut short, is of this very source. */
  readonly isSame: (snapshot: Snapshot) => boolean;
}

/** On snapshots of a {@link FrozenSource}: when that was taken, in nanoseconds since 1970. */
export const FROZEN_TAG = 'tag:longshore-frozen-at';
/** Of files that cannot have changed since: all times tell changes. */
export const UNCHANGING_NS = 2n ** 63n;

/**
 * The time that files of a snapshot are compared with: those of a source that stands still are as
 * they were then, however long after.
 */
export function comparedTimeOf(snapshot: Snapshot, frozen?: FrozenSource): Nanoseconds {
  const { startTimeNs, tags } = snapshot;
  if (frozen?.isSame(snapshot) === true) return UNCHANGING_NS;
  const text = tags?.[FROZEN_TAG] ?? '';
  if (/^\d{1,19}$/.test(text)) {
    const atNs = BigInt(text);
    return atNs < startTimeNs ? atNs : startTimeNs;
  }
  // Velero's data mover and earlier versions of this one do not tell.
  return frozen ? startTimeNs - PREPARE_NS : startTimeNs;
}

/** Of snapshots of directories, in the same order. */
export const previousRoots = (
  snapshots: readonly Snapshot[],
  frozen?: FrozenSource,
): PreviousDirectory[] =>
  snapshots.flatMap((snapshot) => {
    const { rootEntry: root } = snapshot;
    if (root?.type !== 'd') return [];
    return [previousOf(root, comparedTimeOf(snapshot, frozen))];
  });

export const previousOf = (root: DirectoryEntry, startNs: Nanoseconds): PreviousDirectory => ({
  id: root.objectId,
  startNs,
  recorded: recordedIn(root.extra),
});

/**
 * Whether a file or link that has this time still would have another one, had it changed after it
 * was read.
 */
export const tellsChanges = (mtimeNs: Nanoseconds, startNs: Nanoseconds): boolean =>
  mtimeNs < startNs - SETTLE_NS;

/**
 * Entries without extended attributes in an earlier snapshot still have none if their inode did not
 * change since this time, in seconds. Minus infinity for snapshots of Kopia, snapshots that Kopia
 * rewrote, and snapshots without attributes.
 */
export function plainBeforeOf(
  { startNs, recorded }: PreviousDirectory,
  rules: KeptExtras | undefined,
): number {
  if (rules?.xattrs === true && !recorded.includes(RECORDED_XATTRS)) return -Infinity;
  return Number((startNs - SETTLE_NS) / SECOND_NS);
}

const RECORDED_XATTRS = 'xattrs';

/**
 * Notes in the root entry that all entries have their extended attributes. The root entry is in the
 * manifest: the object of the root stays as Kopia writes it. Kopia drops the note with all other
 * extra fields when it rewrites a snapshot.
 */
export function withRecorded(root: DirectoryEntry, kept: KeptExtras | undefined): DirectoryEntry {
  if (kept?.xattrs !== true) return root;
  return { ...root, extra: withNote(root.extra, RECORDED_XATTRS) };
}

/** Whether an entry without extended attributes had none. */
export const hasAllXattrs = ({ extra }: DirectoryEntry): boolean =>
  recordedIn(extra).includes(RECORDED_XATTRS);

/** What an earlier snapshot holds of a directory, or of a part of it. */
export interface PreviousList extends Pick<PreviousDirectory, 'startNs' | 'recorded'> {
  readonly entries: readonly DirectoryEntry[];
}

/** What previous snapshots hold of one directory, the newest complete one first. */
export class PreviousEntries {
  readonly #lists: readonly {
    readonly byName: Map<string, DirectoryEntry>;
    readonly startNs: Nanoseconds;
    readonly recorded: string;
  }[];

  constructor(lists: readonly PreviousList[]) {
    this.#lists = lists.map(({ entries, startNs, recorded }) => ({
      // Names that are not UTF-8 may look alike. Each file gets its own contents.
      byName: new Map(entries.map((entry) => [keyOfEntry(entry), entry])),
      startNs,
      recorded,
    }));
  }

  directories(child: SourceEntry): PreviousDirectory[] {
    const name = keyOfName(child.rawName);
    const found = new Map<ObjectId, PreviousDirectory>();
    for (const { byName, startNs, recorded } of this.#lists) {
      const entry = byName.get(name);
      if (entry?.type !== 'd') continue;
      const id = entry.objectId;
      const known = found.get(id);
      // The later one looked at the same files again.
      if (!known || known.startNs < startNs) found.set(id, { id, startNs, recorded });
    }
    return [...found.values()];
  }

  /** The entry with the same metadata; its object is taken over without reading the file. */
  unchanged(entry: SourceEntry): DirectoryEntry | undefined {
    const name = keyOfName(entry.rawName);
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
