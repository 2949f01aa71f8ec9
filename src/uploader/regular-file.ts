import * as fs from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, Stopwatch, SECOND_NS } from '../base/index.ts';
import { fsPath, isAt, OPENS_MAX } from '../volume-files/index.ts';

const FLAGS = fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK;

/**
 * Whoever has a lease on a file (a file server whose client may write to it) gives it back when it
 * is opened. Without a wait that open fails. Linux takes the lease away after 45 seconds by
 * default.
 */
const LEASE_NS_MAX = 60n * SECOND_NS;
const LEASE_LOOK_EVERY_MS = 100;

/**
 * Opens a file of the volume for reading, or says by undefined that the path is no regular file
 * (any more). What is there is looked at through the descriptor, so nobody can swap it in between:
 * no link is followed, and no pipe or device is waited for; a lease is. The caller closes it.
 * Throws system errors, and what ended the wait.
 */
export async function openRegular(
  path: string | Uint8Array,
  signal?: AbortSignal,
): Promise<fs.FileHandle | undefined> {
  for (let opens = 0; opens < OPENS_MAX; opens++) {
    let file: fs.FileHandle;
    try {
      file = await openLeased(fsPath(path), signal);
    } catch (error) {
      // A link; a socket, or a device that is not there.
      if (isCode(error, 'ELOOP', 'ENXIO', 'ENODEV')) return undefined;
      throw error;
    }
    let isFile = false;
    let isThere = false;
    try {
      // A directory on the way may have become a link that leads out of the volume; or the file was
      // renamed meanwhile.
      isThere = isAt(file.fd, path);
      isFile = (await file.stat()).isFile();
    } finally {
      if (!isThere || !isFile) await file.close();
    }
    if (isThere && isFile) return file;
    if (isThere) return undefined;
  }
  return undefined;
}

async function openLeased(path: string | Buffer, signal?: AbortSignal): Promise<fs.FileHandle> {
  const waited = new Stopwatch();
  for (;;) {
    try {
      return await fs.open(path, FLAGS);
    } catch (error) {
      if (!isCode(error, 'EAGAIN') || waited.elapsedNs > LEASE_NS_MAX) throw error;
    }
    await sleep(LEASE_LOOK_EVERY_MS, undefined, { signal });
  }
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
