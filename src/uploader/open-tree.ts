import type { IndirectEntry, ObjectId } from '../repository/index.ts';
import type { DirectoryEntry } from '../snapshot/index.ts';
import type { DirectoryWriter } from './directory-writer.ts';
import type { SourceEntry } from './listing.ts';
import type { Outcomes } from './outcomes.ts';

/** What the entry of a file or directory is made of. */
export type OpenAttributes = Pick<SourceEntry, 'name' | 'mode' | 'mtimeNs' | 'uid' | 'gid'>;

/** Pieces of a stream that are stored already, while more are on their way. */
export interface StoredPieces {
  stored(): Iterable<IndirectEntry>;
}

/**
 * A file or device that is being read: its finished parts, and the stream of the part under way.
 */
export class OpenFile {
  readonly attributes: OpenAttributes;
  parts: readonly IndirectEntry[] = [];
  stream: StoredPieces | undefined;

  constructor(attributes: OpenAttributes) {
    this.attributes = attributes;
  }

  /**
   * All that is stored of it. Pieces may be missing in between, so their offsets mean nothing. The
   * file goes on while this is iterated; what was stored when it began is among them.
   */
  *stored(): Generator<IndirectEntry> {
    const { parts, stream } = this;
    yield* parts;
    if (stream) yield* stream.stored();
  }
}

/**
 * A directory whose object is not stored yet. An entry leaves `files` or `directories` in the same
 * moment in which its outcome is settled, so that at any time each thing stored is found once.
 */
export class OpenDirectory {
  readonly attributes: OpenAttributes;
  /**
   * Of entries that are in memory: all of them, or the pages of a long directory that are not
   * written yet.
   */
  readonly outcomes = new Set<Outcomes>();
  /** Holds what is written already of a long directory. */
  writer: DirectoryWriter | undefined;
  /** Its files are those of this stored directory; only what lies below may have changed. */
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

  /** Entries that are finished and in memory. */
  finished(): DirectoryEntry[] {
    return [...this.outcomes].flatMap((outcomes) => outcomes.entries());
  }
}

/** What one upload has stored and no finished directory names yet, from the root down. */
export interface OpenTree {
  root: OpenDirectory | OpenFile | undefined;
}
