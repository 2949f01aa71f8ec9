import { lookup } from '../own-properties.ts';
import * as fs from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { messageOf, systemCode } from '../errors.ts';

/**
 * Creates a directory and its missing parents, and returns the created directories from the top
 * down. Throws like `fs`: `EROFS`, `EACCES`, `ENOTDIR`, and `ENOENT` if an existing parent accepts
 * no directories. Node's recursive `mkdir` never ends in `/proc`, and reports `ENOENT` for a
 * read-only file system.
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

/** The same directory may be created by another process at the same time. */
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

/** The reason for users why a directory could not be created or written. */
export const refusalOf = (error: unknown): string =>
  lookup(REFUSALS, systemCode(error) ?? '') ?? messageOf(error);
