import { readSync } from 'node:fs';

/** A range of an open file. */
export interface FileRange {
  readonly descriptor: number;
  readonly offset: number;
  readonly length: number;
}

/** The same with the content hash that its bytes should have. */
export interface RangeToCompare extends FileRange {
  readonly hash: Uint8Array;
}

/** Reads a range into buffers that follow one another. What lies behind the file's end reads as zeros. Throws like `fs`. */
export function readRangeInto(
  { descriptor, offset }: Omit<FileRange, 'length'>,
  buffers: readonly Uint8Array[],
): void {
  let from = offset;
  for (const buffer of buffers) {
    let length = 0;
    while (length < buffer.length) {
      const got = readSync(descriptor, buffer, length, buffer.length - length, from + length);
      if (got === 0) break;
      length += got;
    }
    buffer.fill(0, length);
    from += buffer.length;
  }
}
