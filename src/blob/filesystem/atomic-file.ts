import * as fs from 'node:fs/promises';
import { dirname } from 'node:path';
import {
  CodedError,
  makeDirectories,
  messageOf,
  nothingWritten,
  randomHex,
  systemCode,
} from '../../base/index.ts';

/** Kopia: repo/blob/filesystem/filesystem_options.go. The bytes are encrypted; names are not. */
export const FILE_MODE = 0o600;
export const DIRECTORY_MODE = 0o700;
/** Errors of file systems without modes: FAT, and some network drives. */
const NO_MODES = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EINVAL'];
/** Errors of shared folders of virtual machines and network drives without directory flushes. */
const NO_DIRECTORY_SYNC = ['EINVAL', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS'];
/** Errors of file systems without hard links. */
const NO_LINKS = ['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'];

/** Maps a system error. This is the only place that decides whether a retry helps. */
export function mapError(error: unknown, what: string): unknown {
  const code = systemCode(error);
  if (code === undefined) return error;
  switch (code) {
    case 'ENOSPC':
    case 'EDQUOT':
      return new CodedError('STORAGE_FULL', `no space left in the storage for ${what}`, {
        cause: error,
      });
    case 'EACCES':
    case 'EPERM':
      return new CodedError('STORAGE_DENIED', `the storage denies access to ${what}`, {
        cause: error,
      });
    case 'EROFS':
      return new CodedError('STORAGE_DENIED', `cannot write ${what}: the storage is read-only`, {
        cause: error,
      });
    default: {
      const retry = ['EIO', 'EINTR', 'EAGAIN', 'ETIMEDOUT', 'EMFILE', 'ESTALE'].includes(code);
      return new CodedError(
        'STORAGE_FAILED',
        `the storage failed on ${what}: ${messageOf(error)}`,
        {
          cause: error,
          retry: retry ? 'backoff' : 'never',
        },
      );
    }
  }
}

/** Flushes a directory. If unsupported, the file system decides when a name reaches the disk. */
export async function syncDirectory(path: string): Promise<void> {
  const directory = await fs.open(path, 'r');
  try {
    await directory.sync();
  } catch (error) {
    if (!NO_DIRECTORY_SYNC.includes(systemCode(error) ?? '')) throw error;
  } finally {
    await directory.close();
  }
}

/**
 * Writes a temporary file, flushes it, renames it and flushes the directory. The file is visible
 * whole or not at all, also after a power cut.
 */
export async function writeAtomic(
  path: string,
  data: Iterable<Uint8Array> | AsyncIterable<Uint8Array>,
  {
    publish = fs.rename,
    open = openNew,
  }: {
    publish?: ((temporary: string, path: string) => Promise<void>) | undefined;
    open?: (temporary: string) => Promise<fs.FileHandle>;
  } = {},
): Promise<void> {
  const temporary = `${path}.tmp.${randomHex(8)}`;
  try {
    const file = await open(temporary);
    try {
      for await (const piece of data) await writeAll(file, piece);
      await file.sync();
    } finally {
      await file.close();
    }
    await publish(temporary, path);
  } catch (error) {
    await fs.rm(temporary, { force: true });
    throw error;
  }
  await syncDirectory(dirname(path));
}

/** Gives a file its name, if it is free. A link, unlike a rename, never replaces a file. */
export async function publishNew(temporary: string, path: string): Promise<void> {
  try {
    await fs.link(temporary, path);
  } catch (cause) {
    if (systemCode(cause) === 'EEXIST') {
      throw new CodedError('BLOB_EXISTS', `${path} already exists`, { cause });
    }
    if (!NO_LINKS.includes(systemCode(cause) ?? '')) throw cause;
    const text = `the file system of ${path} has no hard links, and so no put-if-absent`;
    throw new CodedError('UNSUPPORTED_PUT', text, { cause });
  }
  await fs.rm(temporary, { force: true });
}

/** Creates a new file. A mode other than the default ignores the umask. */
export async function openNew(path: string, mode = FILE_MODE): Promise<fs.FileHandle> {
  const file = await fs.open(path, 'wx', mode);
  try {
    if (mode !== FILE_MODE) await file.chmod(mode).catch(unlessWithoutModes);
    return file;
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** Makes and returns missing directories. A mode other than the default ignores the umask. */
export async function makeDirectoriesWith(path: string, mode: number): Promise<string[]> {
  const made = await makeDirectories(path, mode);
  if (mode === DIRECTORY_MODE) return made;
  for (const each of made) await fs.chmod(each, mode).catch(unlessWithoutModes);
  return made;
}

function unlessWithoutModes(error: unknown): void {
  if (!NO_MODES.includes(systemCode(error) ?? '')) throw error;
}

async function writeAll(file: fs.FileHandle, data: Uint8Array): Promise<void> {
  for (let at = 0; at < data.length;) {
    const { bytesWritten } = await file.write(data, at, data.length - at);
    if (bytesWritten === 0) throw nothingWritten();
    at += bytesWritten;
  }
}
