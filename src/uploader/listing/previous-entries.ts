import { type Nanoseconds, SECOND_NS } from '../../base/index.ts';
import type { ObjectId } from '../../repository/index.ts';
import type { DirectoryEntry, Snapshot } from '../../snapshot/index.ts';
import { type KeptExtras, recordedIn, withNote } from '../../volume-files/index.ts';
import type { SourceEntry } from './listing.ts';
import { keyOfEntry, keyOfName } from '../restore/restore-names.ts';

/**
 * Files that changed this shortly before they were read are read again by the next backup, for
 * three reasons. Their time is that of a tick (10 ms of the kernel, 2 s of FAT). Stores into mapped
 * memory set the time only once until the pages are written back, after 35 s by default
 * (vm.dirty_expire_centisecs and vm.dirty_writeback_centisecs). A snapshot of the storage may have
 * a new time before the new data. Our choice.
 */
const SETTLE_NS = 120n * SECOND_NS;
/** A volume snapshot of unknown time may have waited this long to be read. Our choice. */
const PREPARE_NS = 24n * 3600n * SECOND_NS;

/** A directory of an earlier snapshot. */
export interface PreviousDirectory {
  readonly id: ObjectId;
  /** All its files were read after this time. {@link UNCHANGING_NS} for the very same source. */
  readonly startNs: Nanoseconds;
  /** Extra attributes that its snapshot records. An entry without them had none. */
  readonly recorded: string;
}

/** A source that does not change while it is read, because it is a snapshot of the storage. */
export interface FrozenSource {
  /** Time of the snapshot, or shortly before; undefined if unknown. */
  readonly atNs: Nanoseconds | undefined;
  /** Whether an earlier snapshot, complete or not, is of this very source. */
  readonly isSame: (snapshot: Snapshot) => boolean;
}

/** Tag on snapshots of a {@link FrozenSource}: its time, in nanoseconds since 1970. */
export const FROZEN_TAG = 'tag:longshore-frozen-at';
/** For files that cannot have changed: all times are reliable. */
export const UNCHANGING_NS = 2n ** 63n;

/**
 * The time that files of a snapshot are compared with. Files of a frozen source have its state,
 * even if they are read much later.
 */
export function comparedTimeOf(snapshot: Snapshot, frozen?: FrozenSource): Nanoseconds {
  const { startTimeNs, tags } = snapshot;
  if (frozen?.isSame(snapshot) === true) return UNCHANGING_NS;
  const text = tags?.[FROZEN_TAG] ?? '';
  if (/^\d{1,19}$/.test(text)) {
    const atNs = BigInt(text);
    return atNs < startTimeNs ? atNs : startTimeNs;
  }
  // Velero's data mover and earlier versions of Longshore do not record it.
  return frozen ? startTimeNs - PREPARE_NS : startTimeNs;
}

/** Roots of the snapshots of directories, in the same order. */
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

/** Whether a later change of a file or link would show in its time. */
export const tellsChanges = (mtimeNs: Nanoseconds, startNs: Nanoseconds): boolean =>
  mtimeNs < startNs - SETTLE_NS;

/**
 * Entries without extended attributes in an earlier snapshot still have none if their inode did not
 * change since this time, in seconds. Minus infinity for snapshots by Kopia, or rewritten by Kopia,
 * and for snapshots without attributes.
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
 * Adds a note to the root entry that all entries have their extended attributes. The root entry is
 * in the manifest, so the root's object stays as Kopia writes it. Kopia drops the note, and all
 * other extra fields, when it rewrites a snapshot.
 */
export function withRecorded(root: DirectoryEntry, kept: KeptExtras | undefined): DirectoryEntry {
  if (kept?.xattrs !== true) return root;
  return { ...root, extra: withNote(root.extra, RECORDED_XATTRS) };
}

/** Whether entries without extended attributes had none. */
export const hasAllXattrs = ({ extra }: DirectoryEntry): boolean =>
  recordedIn(extra).includes(RECORDED_XATTRS);

/** Entries of a directory, or a part of it, in an earlier snapshot. */
export interface PreviousList extends Pick<PreviousDirectory, 'startNs' | 'recorded'> {
  readonly entries: readonly DirectoryEntry[];
}

/** Entries of one directory in previous snapshots, the newest complete snapshot first. */
export class PreviousEntries {
  readonly #lists: readonly {
    readonly byName: Map<string, DirectoryEntry>;
    readonly startNs: Nanoseconds;
    readonly recorded: string;
  }[];

  constructor(lists: readonly PreviousList[]) {
    this.#lists = lists.map(({ entries, startNs, recorded }) => ({
      // Names that are not UTF-8 may look equal. Each file gets its own contents.
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
      // The later snapshot checked the same files again.
      if (!known || known.startNs < startNs) found.set(id, { id, startNs, recorded });
    }
    return [...found.values()];
  }

  /** The entry with the same metadata. Its object is reused without reading the file. */
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
