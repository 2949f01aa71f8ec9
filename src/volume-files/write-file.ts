import {
  closeSync,
  constants,
  linkSync,
  lstatSync,
  openSync,
  renameSync,
  unlinkSync,
} from 'node:fs';
import { posix, systemCode, writeAllSync } from '../base/index.ts';
import { type BytePath, fsPath, shownPath } from './byte-path.ts';
import type { SpecialNode } from './extra-attributes.ts';
import {
  applyAttributesToDescriptor,
  type FileAttributes,
  type NotSet,
} from './file-attributes.ts';

const { O_NOFOLLOW, O_WRONLY, O_CREAT, O_EXCL } = constants;
/** A sparse file skips zeros in blocks of this size. */
const SPARSE_BLOCK_BYTES = 4096;
const ZERO_BLOCK = Buffer.alloc(SPARSE_BLOCK_BYTES);

/** A place in an open file. With `sparse`, unwritten bytes already are zeros. */
export interface PlaceInFile {
  readonly descriptor: number;
  readonly offset: number;
  readonly sparse: boolean;
}

/** A small file that is created, written, closed and moved to its place in one call. */
export interface NewFile {
  /** A free name, under which the file is created. */
  readonly path: BytePath;
  readonly attributes: FileAttributes;
  /** Its final path, in the same directory. If undefined, the caller moves it. */
  readonly place?: FilePlace | undefined;
}

export interface FilePlace {
  readonly path: BytePath;
  /** Replaces an existing entry. Otherwise an existing entry is `EEXIST`. */
  readonly replaces: boolean;
}

export function writeIntoFile({ descriptor, offset, sparse }: PlaceInFile, data: Uint8Array): void {
  if (sparse) writeSparse(descriptor, data, offset);
  else writeAllSync(descriptor, data, offset);
}

/**
 * After a kill the place has the old file or the new file, whole. An error leaves nothing of the
 * new file. Returns the attributes that could not be set.
 */
export function writeNewFile({ path, attributes, place }: NewFile, data: Uint8Array): NotSet {
  const descriptor = openSync(fsPath(path), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  try {
    let notSet: NotSet;
    try {
      writeAllSync(descriptor, data, 0);
      notSet = applyAttributesToDescriptor(descriptor, attributes);
    } finally {
      // Some file systems report a lack of space only now.
      closeSync(descriptor);
    }
    if (place?.replaces === true) renameSync(fsPath(path), fsPath(place.path));
    else if (place) renameNew(path, place.path);
    return notSet;
  } catch (error) {
    // A partial file must not pass for a whole file.
    removeQuietly(path);
    throw error;
  }
}

const NODE_TYPES = { fifo: 0o010000, char: 0o020000, block: 0o060000 } as const;

/** Makes a FIFO or a device node for its owner only. Returns false if that is impossible. */
export function makeNode(path: BytePath, { kind, device }: SpecialNode): boolean {
  try {
    return posix().makeNode(fsPath(path), NODE_TYPES[kind] | 0o600, device);
  } catch (error) {
    // Device nodes need a privilege, and some file systems have no special files.
    if (NO_LINKS.includes(systemCode(error) ?? '')) return false;
    throw error;
  }
}

/** Codes of file systems without hard links. */
const NO_LINKS = ['EPERM', 'EOPNOTSUPP', 'ENOTSUP', 'ENOSYS', 'EMLINK'];

/**
 * Renames a file unless the new name is taken: `EEXIST`. On a file system that ignores case, two
 * names of a snapshot may be equal.
 */
function renameNew(from: BytePath, to: BytePath): void {
  const [old, taken] = [fsPath(from), fsPath(to)];
  if (posix().renameNew(old, taken)) return;
  try {
    linkSync(old, taken);
  } catch (error) {
    if (!NO_LINKS.includes(systemCode(error) ?? '')) throw error;
    if (lstatSync(taken, { throwIfNoEntry: false })) {
      const text = `EEXIST: file already exists, rename '${shownPath(to)}'`;
      throw Object.assign(new Error(text, { cause: error }), { code: 'EEXIST', syscall: 'rename' });
    }
    renameSync(old, taken);
    return;
  }
  unlinkSync(old);
}

/** The earlier error matters. */
function removeQuietly(path: BytePath): void {
  try {
    unlinkSync(fsPath(path));
  } catch {
    // The file is already removed, or the disk is gone.
  }
}

/** Writes the bytes that are not zero. The file was truncated to its length before. */
function writeSparse(descriptor: number, data: Uint8Array, offset: number): void {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.length);
  const isZero = (at: number): boolean => {
    const block = bytes.subarray(at, at + SPARSE_BLOCK_BYTES);
    return block.equals(ZERO_BLOCK.subarray(0, block.length));
  };
  for (let at = 0; at < bytes.length;) {
    let end = at;
    while (end < bytes.length && !isZero(end)) end += SPARSE_BLOCK_BYTES;
    end = Math.min(end, bytes.length);
    if (end > at) writeAllSync(descriptor, bytes.subarray(at, end), offset + at);
    at = end;
    while (at < bytes.length && isZero(at)) at += SPARSE_BLOCK_BYTES;
  }
}
