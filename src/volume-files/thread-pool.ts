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

export interface OpenItem {
  /** Packed bytes, in the shared memory. */
  readonly span: Span;
  readonly hash: Uint8Array;
  readonly compressionHeaderId: number;
  readonly originalLength: number;
  /** The plaintext has its own compression header (objects of index version 1). */
  readonly compressedObject: boolean;
  /** The target: a place in an open file, or a new file with only this content. */
  readonly target: PlaceInFile | NewFile;
}

/** 1 for each range that matches its hash, else 0. Unreadable ranges have 0 and a failure. */
export interface RangeVerdicts {
  readonly equal: Uint8Array;
  readonly failures: readonly OpenFailure[];
}

export interface OpenResult {
  readonly failures: readonly OpenFailure[];
  /** New files that are written whole, but lack attributes. */
  readonly notSet: readonly (readonly [index: number, notSet: NotSet])[];
}

/** Why one item failed; the others are done. */
export interface OpenFailure {
  readonly index: number;
  readonly code: string;
  readonly message: string;
}

/**
 * The work that leaves the main thread. Long data are passed as spans of the shared memory, and
 * messages are short. The threads and the in-process form pass the same contract suite.
 */
export interface ThreadPool extends AsyncDisposable {
  readonly arena: Arena;
  readonly threads: number;
  /** Grows with every finished task: a sign of life that separates slow from stuck. */
  readonly tasksDone: number;
  hash(messages: readonly (readonly Span[])[]): Promise<Uint8Array[]>;
  /** Hashes `HASH_LANES` messages, as far as the shortest; see `ContentHasher.hashPartly`. */
  hashPartly(messages: readonly PartialSpans[]): Promise<HashProgress[]>;
  /** Cut points of buzhash in one piece, see `Kernels.cutBuzhash`. */
  cut(spec: SplitterSpec, piece: Span, count: number): Promise<number[]>;
  /** Compresses, encrypts and writes all items at `address`, which must have room. */
  seal(items: readonly SealItem[], address: number): Promise<SealedItem[]>;
  /** Reads whole files one after the other into the slab, and hashes each. */
  readFiles(files: readonly FileToRead[], slab: Span): Promise<FileRead[]>;
  /** Sets only `isTooLong` for more than `entriesMax` names. */
  readDirectory(
    path: string | Uint8Array,
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryListing>;
  /** Status of these names of a directory: bytes, each with a zero behind it. */
  lookAt(
    path: string | Uint8Array,
    names: Uint8Array,
    rules?: ExtraRules,
  ): Promise<DirectoryListing>;
  /**
   * Reads a directory and compares it with an earlier stream. An unreadable stream counts as
   * different. If the directory has any of the `special` names, nothing is compared.
   */
  compareDirectory(
    path: string | Uint8Array,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryComparison>;
  /**
   * Reads ranges of open files, of any length, and compares their hashes. The slab is room for the
   * hashing. The kernel reads the next ranges ahead, and at the end those in `ahead`, which a later
   * call compares.
   */
  compareRanges(
    ranges: readonly RangeToCompare[],
    slab: Span,
    ahead: readonly FileRange[],
  ): Promise<RangeVerdicts>;
  /** Decrypts, decompresses and writes to files. Failures have a code or a system error. */
  open(items: readonly OpenItem[]): Promise<OpenResult>;
  /** Sets attributes by descriptor, also if `O_PATH` opened it, for example of a symlink. */
  setAttributes(descriptor: number, attributes: FileAttributes, isLink: boolean): Promise<NotSet>;
  hasExtra(descriptor: number, extra: string | undefined, isExact: boolean): Promise<boolean>;
  /** Makes a FIFO or a device node. Returns false if that is impossible here. Throws like `fs`. */
  makeNode(path: string | Uint8Array, node: SpecialNode): Promise<boolean>;
  /** The extended attributes of an open file, as text; undefined without any. */
  readExtraOf(descriptor: number): Promise<string | undefined>;
  /** Flushes the file system of a descriptor. Returns false if that is impossible. */
  syncFilesystem(descriptor: number): Promise<boolean>;
  /** Ends the threads. A thread that is blocked in the kernel is left behind after a while. */
  close(): Promise<void>;
}

export type ThreadPoolFactory = (keys: CodecKeys, arena: Arena) => ThreadPool;
