import { closeSync, constants, existsSync, openSync, readlinkSync } from 'node:fs';
import { pinnedPath, posix } from '../base/index.ts';
import { type BytePath, fsPath, shownPath } from './byte-path.ts';

const DELETED = Buffer.from(' (deleted)');

/**
 * A file may be renamed between its opening and the check of its path, as logs are. The file is
 * then opened again, up to this many times in all. Only a link differs each time. Our choice.
 */
export const OPENS_MAX = 20;

/**
 * Opens a path of the volume, whose root has no link in its path. Somebody who writes to the volume
 * meanwhile may replace any directory by a link. The link could lead to other files that the
 * process may read, such as its credentials. Throws like `fs`: `ELOOP` if some part is a link. The
 * caller closes the descriptor.
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

/** The system's error for a path with a forbidden link. */
export const linkError = (path: BytePath): Error =>
  Object.assign(new Error(`ELOOP: a part of the path is a link, open '${shownPath(path)}'`), {
    code: 'ELOOP',
  });

const ZERO = Buffer.of(0);

let hasDescriptors: boolean | undefined;

/** A path to the opened file, even if `path` changes. Without /proc, as in a chroot, `path`. */
export function pathOf(descriptor: number, path: BytePath): BytePath {
  hasDescriptors ??= existsSync(pinnedPath(0).replace(/0$/, ''));
  return hasDescriptors ? pinnedPath(descriptor) : path;
}

/** Whether the opened file lies at its path, so that no link led to it. */
export function isAt(descriptor: number, path: BytePath): boolean {
  let found: Buffer;
  try {
    found = readlinkSync(pinnedPath(descriptor), { encoding: 'buffer' });
  } catch {
    // Without /proc this cannot be checked.
    return true;
  }
  const expected = Buffer.from(path as string);
  return found.equals(expected) || found.equals(Buffer.concat([expected, DELETED]));
}
