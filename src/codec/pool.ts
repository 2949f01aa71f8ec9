import type { Arena, Span } from './arena.ts';
import type { HashProgress, HashResume } from './hashing/hashing.ts';
import type { SplitterSpec } from './splitter/spec.ts';

/** A directory whose files are all as a stream says that they were. */
export interface SameFiles {
  /** Files and symbolic links. */
  readonly entries: number;
  /** Regular files among them, and their bytes. */
  readonly files: number;
  readonly bytes: number;
  /** Keys of the contents that name their objects, one after the other, as indexes hold them. */
  readonly keys: Uint8Array;
  /** JSON of the stream's directories, and of its summary. */
  readonly directories: string;
  readonly summary: string;
}

/** Keys and algorithms of one repository, as the threads need them. */
export interface CodecKeys {
  readonly hash: string;
  readonly encryption: string;
  readonly secret: Uint8Array;
  readonly masterKey: Uint8Array;
}

/** A message in the shared memory that may have been hashed in part. */
export interface PartialSpans {
  readonly spans: readonly Span[];
  readonly resume?: HashResume | undefined;
}

export interface SealItem {
  readonly spans: readonly Span[];
  readonly hash: Uint8Array;
  /** Compressor to try, 0 for none. */
  readonly compressionHeaderId: number;
}

export interface SealedItem {
  readonly packedLength: number;
  /** 0 when stored raw. */
  readonly compressionHeaderId: number;
}

/** One small file to read whole. `path` is bytes where the name is not UTF-8. */
export interface FileToRead {
  readonly path: string | Uint8Array;
  /** Bytes expected; more are not read, and `grew` says so. */
  readonly sizeBytes: number;
}

/** What is said of a path where something else has taken a file's place: a pipe, a device, a socket. */
export const NO_LONGER_REGULAR = 'it is no longer a regular file';

export interface FileRead {
  /** Offset of the file's bytes in the slab. */
  readonly offset: number;
  readonly length: number;
  readonly hash: Uint8Array;
  /** The file had more bytes than expected: read it as a large one. */
  readonly grew: boolean;
  /** System error code and message when it could not be read. */
  readonly error?: { code: string; message: string };
}

/** A directory listing: names as they are on disk, attributes in one array of 64-bit numbers. */
export interface DirectoryListing {
  /** Strings, or bytes where a name is not UTF-8. */
  readonly names: readonly (string | Uint8Array)[];
  /** {@link STAT_FIELDS} numbers for each name: mode, size, mtime in ns, uid, gid, device. */
  readonly stats: BigInt64Array;
  /** Symlink targets by position. */
  readonly targets: readonly (readonly [number, Uint8Array])[];
  /** Entries that went away or could not be looked at. */
  readonly failures: readonly (readonly [number, string, string])[];
  /** There are more names than were asked for at most, and none is given. */
  readonly isTooLong?: boolean;
}
/** Names of one directory that are held in memory at once, some 1 KB each until they are stored. Our choice. */
export const LISTING_ENTRIES_MAX = 1 << 15;
export const STAT_FIELDS = 6;

/** The stream of a directory as it lies in its pack. */
export interface PackedStream {
  readonly packed: Uint8Array;
  readonly hash: Uint8Array;
  readonly compressionHeaderId: number;
  readonly originalLength: number;
}

/** A listing; with `same` only its directories, since the files are as the stream says. */
export interface DirectoryComparison {
  readonly listing: DirectoryListing;
  readonly same?: SameFiles;
}

/** A content to decrypt and write. */
export interface OpenItem {
  /** Packed bytes, in the shared memory. */
  readonly span: Span;
  readonly hash: Uint8Array;
  readonly compressionHeaderId: number;
  readonly originalLength: number;
  /** The plaintext carries its own compression header (objects of index version 1). */
  readonly compressedObject: boolean;
  /** Where it goes: a place in an open file, or a new file made of it alone. */
  readonly target:
    { readonly descriptor: number; readonly offset: number; readonly sparse: boolean } | NewFile;
}

/** A small file: made, filled, given its attributes and closed in one go. Must not exist. */
export interface NewFile {
  readonly path: string;
  readonly attributes: FileAttributes;
}

export interface FileAttributes {
  /** 0o7777. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtimeNs: bigint;
}

/** Why one item failed; the others are done. */
export interface OpenFailure {
  readonly index: number;
  readonly code: string;
  readonly message: string;
}

/**
 * The work that leaves the main thread. Everything that is long is passed as spans of the shared
 * memory; what is sent is short. One contract suite holds the threads and the in-process form.
 */
export interface CodecPool extends AsyncDisposable {
  readonly arena: Arena;
  /** How many tasks can make progress at once. */
  readonly threads: number;
  /** Grows with every task that is done: life, for those who must tell slow from stuck. */
  readonly tasksDone: number;
  hash(messages: readonly (readonly Span[])[]): Promise<Uint8Array[]>;
  /** One or two messages, the longer only as far as the shorter goes; see `ContentHasher.hashPartly`. */
  hashPartly(messages: readonly PartialSpans[]): Promise<HashProgress[]>;
  /** Cut points of buzhash in one piece, see `Kernels.cutBuzhash`. */
  cut(spec: SplitterSpec, piece: Span, count: number): Promise<number[]>;
  /** Compresses, encrypts and writes one after the other at `address`, where enough room must be. */
  seal(items: readonly SealItem[], address: number): Promise<SealedItem[]>;
  /** Reads whole files one after the other into the slab and hashes each. */
  readFiles(files: readonly FileToRead[], slab: Span): Promise<FileRead[]>;
  /** With more than `entriesMax` names, it only says so. */
  readDirectory(path: string | Uint8Array, entriesMax: number): Promise<DirectoryListing>;
  /** What `lstat` says of these names of a directory: bytes, with a zero behind each. */
  lookAt(path: string | Uint8Array, names: Uint8Array): Promise<DirectoryListing>;
  /**
   * Reads a directory and compares it with an earlier stream; one that cannot be opened is as if it
   * differed. With any of the `special` names in it, nothing is compared.
   */
  compareDirectory(
    path: string | Uint8Array,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
  ): Promise<DirectoryComparison>;
  /** Decrypts, decompresses and writes to files; returns what failed, by code or system error. */
  open(items: readonly OpenItem[]): Promise<OpenFailure[]>;
  /** Gives what a descriptor is of its attributes; it may be one that `O_PATH` opened, of a symlink itself. */
  setAttributes(descriptor: number, attributes: FileAttributes, isLink: boolean): Promise<void>;
  /** Flushes the file system that a descriptor is on; false where that cannot be done. */
  syncFilesystem(descriptor: number): Promise<boolean>;
  /** Ends the threads; one that the kernel does not let go is left behind after a while. */
  close(): Promise<void>;
}

export type CodecPoolFactory = (keys: CodecKeys, arena: Arena) => CodecPool;
