import { closeSync, constants, openSync, unlinkSync } from 'node:fs';
import { writeAllSync } from '../base/index.ts';
import { applyAttributesToDescriptor, type FileAttributes } from './file-attributes.ts';

const { O_NOFOLLOW, O_WRONLY, O_CREAT, O_EXCL } = constants;
/** Zeros are skipped in blocks of this size when a file is written sparse. */
const SPARSE_BLOCK_BYTES = 4096;
const ZERO_BLOCK = Buffer.alloc(SPARSE_BLOCK_BYTES);

/** A place in an open file. `sparse`: the file holds zeros already, and zeros are not written. */
export interface PlaceInFile {
  readonly descriptor: number;
  readonly offset: number;
  readonly sparse: boolean;
}

/** A small file: made, filled, given its attributes and closed in one go. Must not exist. */
export interface NewFile {
  readonly path: string;
  readonly attributes: FileAttributes;
}

export function writeIntoFile({ descriptor, offset, sparse }: PlaceInFile, data: Uint8Array): void {
  if (sparse) writeSparse(descriptor, data, offset);
  else writeAllSync(descriptor, data, offset);
}

/** On any error nothing is left of the file. */
export function writeNewFile({ path, attributes }: NewFile, data: Uint8Array): void {
  const descriptor = openSync(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
  try {
    try {
      writeAllSync(descriptor, data, 0);
      applyAttributesToDescriptor(descriptor, attributes);
    } finally {
      // Some file systems tell only now that the bytes did not find room.
      closeSync(descriptor);
    }
  } catch (error) {
    // Half a file must not pass for a whole one.
    removeQuietly(path);
    throw error;
  }
}

/** The error that came before matters, not this one. */
function removeQuietly(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // Somebody else was faster, or the disk is gone.
  }
}

/** Writes what is not zero; the file was truncated to its length before. */
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
