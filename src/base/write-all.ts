import { writeSync } from 'node:fs';

/** As `fs.writeSync`: may take less than it was given. */
export type WriteSome = (
  descriptor: number,
  bytes: Uint8Array,
  offset: number,
  length: number,
  position: number,
) => number;

/**
 * Writes all bytes at a position of a file. A full disk takes a part of the bytes first, without an
 * error; the next write then says ENOSPC, as this does for a write that takes nothing.
 */
export function writeAllSync(
  descriptor: number,
  bytes: Uint8Array,
  position: number,
  write: WriteSome = writeSync,
): void {
  for (let at = 0; at < bytes.length;) {
    const written = write(descriptor, bytes, at, bytes.length - at, position + at);
    if (written === 0) throw nothingWritten();
    at += written;
  }
}

/** The system error of a write that took no byte. */
export const nothingWritten = (): Error =>
  Object.assign(new Error('ENOSPC: a write accepted no bytes'), {
    code: 'ENOSPC',
    syscall: 'write',
  });
