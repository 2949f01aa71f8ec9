import type { IndirectEntry, ObjectId } from '../../repository/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import type { DirectoryWriter } from './directory-writer.ts';
import type { SourceEntry } from '../listing/listing.ts';
import type { EntryOutcomes } from './entry-outcomes.ts';

/** Attributes for the entry of a file or directory. */
export type OpenAttributes = Pick<SourceEntry, 'name' | 'mode' | 'mtimeNs' | 'uid' | 'gid'>;

/** Stored pieces of a stream that is still being read. */
export interface StoredPieces {
  stored(): Iterable<IndirectEntry>;
}

/** A file or device that is being read: its finished parts, and the stream of the current part. */
export class OpenFile {
  readonly attributes: OpenAttributes;
  parts: readonly IndirectEntry[] = [];
  stream: StoredPieces | undefined;

  constructor(attributes: OpenAttributes) {
    this.attributes = attributes;
  }

  /**
   * All stored pieces. Pieces may be missing in between, so their offsets mean nothing. The file
   * may grow during the iteration, which includes all pieces stored before it.
   */
  *stored(): Generator<IndirectEntry> {
    const { parts, stream } = this;
    yield* parts;
    if (stream) yield* stream.stored();
  }
}

/**
 * A directory whose object is not stored yet. An entry leaves `files` or `directories` in the same
 * turn in which its outcome is settled. So everything stored is found exactly once.
 */
export class OpenDirectory {
  readonly attributes: OpenAttributes;
  /** Outcomes in memory: all of them, or the unwritten pages of a long directory. */
  readonly outcomes = new Set<EntryOutcomes>();
  /** Holds the written part of a long directory. */
  writer: DirectoryWriter | undefined;
  /** Its files are those of this stored directory; only its subdirectories may differ. */
  keptId: ObjectId | undefined;
  readonly files = new Set<OpenFile>();
  readonly directories = new Set<OpenDirectory>();

  constructor(attributes: OpenAttributes) {
    this.attributes = attributes;
  }

  openFile(attributes: OpenAttributes): OpenFile {
    const file = new OpenFile(attributes);
    this.files.add(file);
    return file;
  }

  openDirectory(attributes: OpenAttributes): OpenDirectory {
    const directory = new OpenDirectory(attributes);
    this.directories.add(directory);
    return directory;
  }

  /** Finished entries in memory. */
  finished(): DirectoryEntry[] {
    return [...this.outcomes].flatMap((outcomes) => outcomes.entries());
  }
}

/** Everything that an upload has stored and no finished directory names yet. */
export interface OpenTree {
  root: OpenDirectory | OpenFile | undefined;
}
