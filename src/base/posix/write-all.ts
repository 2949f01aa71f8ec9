import { writeSync } from 'node:fs';

/** Like `fs.writeSync`, may write fewer bytes than given. */
export type WriteSome = (
  descriptor: number,
  bytes: Uint8Array,
  offset: number,
  length: number,
  position: number,
) => number;

/**
 * Writes all bytes at a position of a file. A full disk first accepts a part of the bytes, and the
 * next write fails with ENOSPC. A write of no bytes throws ENOSPC here too.
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

/** The system error for a write that accepted no bytes. */
export const nothingWritten = (): Error =>
  Object.assign(new Error('ENOSPC: a write accepted no bytes'), {
    code: 'ENOSPC',
    syscall: 'write',
  });
