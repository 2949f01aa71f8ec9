import type {
  Arena,
  CodecKeys,
  HashProgress,
  HashResume,
  Span,
  SplitterSpec,
} from '../codec/index.ts';
import type { FileRange, RangeToCompare } from './compare-ranges.ts';
import type { DirectoryComparison, DirectoryListing, PackedStream } from './directory-listing.ts';
import type { ExtraRules } from './extra-attributes.ts';
import type { FileAttributes, NotSet } from './file-attributes.ts';
import type { FileRead, FileToRead } from './read-file.ts';
import type { SpecialNode } from './extra-attributes.ts';
import type { NewFile, PlaceInFile } from './write-file.ts';

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
  readonly target: PlaceInFile | NewFile;
}

/** Whether each range is as its hash says, 1 or 0; for those that could not be read 0, and why. */
export interface RangeVerdicts {
  readonly equal: Uint8Array;
  readonly failures: readonly OpenFailure[];
}

/** What became of items that are decrypted and written. */
export interface OpenResult {
  readonly failures: readonly OpenFailure[];
  /** New files that are whole, and lack attributes. */
  readonly notSet: readonly (readonly [index: number, notSet: NotSet])[];
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
export interface ThreadPool extends AsyncDisposable {
  readonly arena: Arena;
  /** How many tasks can make progress at once. */
  readonly threads: number;
  /** Grows with every task that is done: life, for those who must tell slow from stuck. */
  readonly tasksDone: number;
  hash(messages: readonly (readonly Span[])[]): Promise<Uint8Array[]>;
  /**
   * At most `HASH_LANES` messages, all as far as the shortest goes; see `ContentHasher.hashPartly`.
   */
  hashPartly(messages: readonly PartialSpans[]): Promise<HashProgress[]>;
  /** Cut points of buzhash in one piece, see `Kernels.cutBuzhash`. */
  cut(spec: SplitterSpec, piece: Span, count: number): Promise<number[]>;
  /**
   * Compresses, encrypts and writes one after the other at `address`, where enough room must be.
   */
  seal(items: readonly SealItem[], address: number): Promise<SealedItem[]>;
  /** Reads whole files one after the other into the slab and hashes each. */
  readFiles(files: readonly FileToRead[], slab: Span): Promise<FileRead[]>;
  /** With more than `entriesMax` names, it only says so. */
  readDirectory(
    path: string | Uint8Array,
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryListing>;
  /** What `lstat` says of these names of a directory: bytes, with a zero behind each. */
  lookAt(
    path: string | Uint8Array,
    names: Uint8Array,
    rules?: ExtraRules,
  ): Promise<DirectoryListing>;
  /**
   * Reads a directory and compares it with an earlier stream; one that cannot be opened is as if it
   * differed. With any of the `special` names in it, nothing is compared.
   */
  compareDirectory(
    path: string | Uint8Array,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryComparison>;
  /**
   * Reads ranges of open files, of any length, and compares their hashes; the slab is room for what
   * is being hashed. The kernel is asked to read what comes next ahead, in the end those `ahead`,
   * which will be compared later.
   */
  compareRanges(
    ranges: readonly RangeToCompare[],
    slab: Span,
    ahead: readonly FileRange[],
  ): Promise<RangeVerdicts>;
  /** Decrypts, decompresses and writes to files; failures have a code or a system error. */
  open(items: readonly OpenItem[]): Promise<OpenResult>;
  /**
   * Gives what a descriptor is of its attributes; it may be one that `O_PATH` opened, of a symlink
   * itself.
   */
  setAttributes(descriptor: number, attributes: FileAttributes, isLink: boolean): Promise<NotSet>;
  /** Whether a descriptor's file has these extended attributes. */
  hasExtra(descriptor: number, extra: string | undefined, isExact: boolean): Promise<boolean>;
  /** Makes a FIFO or a device node. False: it cannot be made here. Throws like `fs`. */
  makeNode(path: string | Uint8Array, node: SpecialNode): Promise<boolean>;
  /** The extended attributes of an open file, as text. Undefined without any. */
  readExtraOf(descriptor: number): Promise<string | undefined>;
  /** Flushes the file system that a descriptor is on; false where that cannot be done. */
  syncFilesystem(descriptor: number): Promise<boolean>;
  /** Ends the threads; one that the kernel does not let go is left behind after a while. */
  close(): Promise<void>;
}

export type ThreadPoolFactory = (keys: CodecKeys, arena: Arena) => ThreadPool;
