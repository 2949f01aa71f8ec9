import { lookup } from './own-keys.ts';
import * as fs from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { messageOf, systemCode } from './errors.ts';

/**
 * Makes a directory, and those above it that are missing. Throws like `fs`: `EROFS`, `EACCES`,
 * `ENOTDIR` as the system says, and `ENOENT` where the parent is there and takes no directories.
 * Node's recursive `mkdir` tries for ever in `/proc`, and says `ENOENT` for a file system that is
 * read-only. Returns what was made, from the top down.
 */
export async function makeDirectories(path: string, mode = 0o777): Promise<string[]> {
  const missing: string[] = [];
  const made: string[] = [];
  const make = async (at: string): Promise<void> => {
    const isMade = await fs.mkdir(at, { mode }).then(() => true, unlessDirectory(at));
    if (isMade) made.push(at);
  };
  for (let at = resolve(path); ; at = dirname(at)) {
    try {
      await make(at);
      break;
    } catch (error) {
      if (systemCode(error) !== 'ENOENT' || dirname(at) === at) throw error;
      missing.push(at);
    }
  }
  for (const at of missing.toReversed()) await make(at);
  return made;
}

/** Somebody else may make the same directory at the same time. */
const unlessDirectory =
  (path: string) =>
  async (error: unknown): Promise<false> => {
    const isThere = ['EEXIST', 'EISDIR'].includes(systemCode(error) ?? '');
    const stat = isThere ? await fs.stat(path).catch(() => undefined) : undefined;
    if (stat?.isDirectory()) return false;
    if (!stat || !isThere) throw error;
    const text = `ENOTDIR: not a directory, mkdir '${path}'`;
    throw Object.assign(new Error(text), { code: 'ENOTDIR', syscall: 'mkdir', path });
  };

const REFUSALS: Readonly<Record<string, string>> = {
  EROFS: 'the file system is read-only',
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  ENOENT: 'its parent directory does not accept new directories',
  ENOTDIR: 'one of its parents is not a directory',
};

/** Why a directory could not be made or written, for a person. */
export const refusalOf = (error: unknown): string =>
  lookup(REFUSALS, systemCode(error) ?? '') ?? messageOf(error);
