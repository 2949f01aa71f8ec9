import * as fs from 'node:fs/promises';
import { isCode } from '../base/index.ts';

const FLAGS = fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK;

/**
 * Opens a file of the volume for reading, or says by undefined that the path is no regular file (any more). What is
 * there is looked at through the descriptor, so nobody can swap it in between: no link is followed, and no pipe or
 * device is waited for. The caller closes it. Throws system errors.
 */
export async function openRegular(path: string | Uint8Array): Promise<fs.FileHandle | undefined> {
  let file: fs.FileHandle;
  try {
    file = await fs.open(typeof path === 'string' ? path : Buffer.from(path), FLAGS);
  } catch (error) {
    // A link; a socket, or a device that is not there.
    if (isCode(error, 'ELOOP', 'ENXIO', 'ENODEV')) return undefined;
    throw error;
  }
  try {
    if ((await file.stat()).isFile()) return file;
  } catch (error) {
    await file.close();
    throw error;
  }
  await file.close();
  return undefined;
}

/** Reads from the start of a file until it ends or `lengthMax` bytes are there. */
export async function readStart(file: fs.FileHandle, lengthMax: number): Promise<Buffer> {
  const { size } = await file.stat();
  // A file may grow meanwhile; the end is where nothing more comes.
  const bytes = Buffer.alloc(Math.min(lengthMax, size + 1));
  let length = 0;
  while (length < bytes.length) {
    const { bytesRead } = await file.read(bytes, length, bytes.length - length, length);
    if (bytesRead === 0) break;
    length += bytesRead;
  }
  return bytes.subarray(0, length);
}
