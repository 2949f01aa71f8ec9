import { closeSync, constants, existsSync, openSync, readlinkSync } from 'node:fs';
import { pinnedPath, posix } from '../base/index.ts';
import { type BytePath, fsPath, shownPath } from './byte-path.ts';

const DELETED = Buffer.from(' (deleted)');

/**
 * What is renamed between its opening and the look at where it lies, as logs are, was at its place
 * all the same. It is opened again, so many times in all: then it is there, or it is gone. Only a
 * link differs each time. Our choice.
 */
export const OPENS_MAX = 20;

/**
 * Opens a path of the volume, whose root has no link in its path. Whoever writes to the volume
 * meanwhile may put a link in place of any directory, and it would lead out of the volume: to what
 * else the process may read, such as its credentials. Throws like `fs`: `ELOOP` where some part is
 * a link. The caller closes the descriptor.
 */
export function openDirectly(path: BytePath, flags: number): number {
  const open = posix().openWithoutLinks;
  if (open) return open(Buffer.concat([Buffer.from(path as string), ZERO]), flags);
  for (let opens = 0; opens < OPENS_MAX; opens++) {
    const descriptor = openSync(fsPath(path), flags | constants.O_NOFOLLOW);
    let isThere = false;
    try {
      isThere = isAt(descriptor, path);
    } finally {
      if (!isThere) closeSync(descriptor);
    }
    if (isThere) return descriptor;
  }
  throw linkError(path);
}

/** What the system says of a path with a link in it that it is not to follow. */
export const linkError = (path: BytePath): Error =>
  Object.assign(new Error(`ELOOP: a part of the path is a link, open '${shownPath(path)}'`), {
    code: 'ELOOP',
  });

const ZERO = Buffer.of(0);

let hasDescriptors: boolean | undefined;

/**
 * A path that leads to what was opened, whatever becomes of the one that it was opened by. Without
 * /proc, as in a bare chroot, it is that one.
 */
export function pathOf(descriptor: number, path: BytePath): BytePath {
  hasDescriptors ??= existsSync(pinnedPath(0).replace(/0$/, ''));
  return hasDescriptors ? pinnedPath(descriptor) : path;
}

/** Whether what was opened lies where its path says, so that no link led to it. */
export function isAt(descriptor: number, path: BytePath): boolean {
  let found: Buffer;
  try {
    found = readlinkSync(pinnedPath(descriptor), { encoding: 'buffer' });
  } catch {
    // Without /proc nobody can tell.
    return true;
  }
  const expected = Buffer.from(path as string);
  return found.equals(expected) || found.equals(Buffer.concat([expected, DELETED]));
}
