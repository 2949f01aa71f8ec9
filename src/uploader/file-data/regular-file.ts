import * as fs from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, Stopwatch, SECOND_NS } from '../../base/index.ts';
import { fsPath, isAt, OPENS_MAX } from '../../volume-files/index.ts';

const FLAGS = fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK;

/**
 * Opening a file breaks its lease, for example of a file server whose client may write to it. An
 * open without a wait fails. Linux revokes the lease after 45 seconds by default.
 */
const LEASE_NS_MAX = 60n * SECOND_NS;
const LEASE_LOOK_EVERY_MS = 100;

/**
 * Opens a file of the volume for reading. Undefined if the path is not a regular file (any more).
 * Checks the file through the descriptor, so it cannot be swapped in between. Follows no link, and
 * waits for no pipe or device, but for a lease. The caller closes it. Throws system errors, and the
 * abort reason.
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
      // A link, a socket, or a missing device.
      if (isCode(error, 'ELOOP', 'ENXIO', 'ENODEV')) return undefined;
      throw error;
    }
    let isFile = false;
    let isThere = false;
    try {
      // A directory in the path may have become a link that leads out of the volume. Or the file
      // was renamed meanwhile.
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

/** Reads from the start of a file to its end, or to `lengthMax` bytes. */
export async function readStart(file: fs.FileHandle, lengthMax: number): Promise<Buffer> {
  const { size } = await file.stat();
  // A file may grow meanwhile, so read to its real end.
  const bytes = Buffer.alloc(Math.min(lengthMax, size + 1));
  let length = 0;
  while (length < bytes.length) {
    const { bytesRead } = await file.read(bytes, length, bytes.length - length, length);
    if (bytesRead === 0) break;
    length += bytesRead;
  }
  return bytes.subarray(0, length);
}
