import type { Dirent } from 'node:fs';
import * as fs from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  CodedError,
  isCode,
  makeDirectories,
  SECOND_NS,
  systemClock,
  systemCode,
} from '../../base/index.ts';
import type { Body, Bucket, ObjectPutOptions } from '../bucket.ts';
import { blobId, BlobNotFoundError, type SignalOptions } from '../storage.ts';
import {
  DIRECTORY_MODE,
  mapError,
  openNew,
  publishNew,
  syncDirectory,
  writeAtomic,
} from './atomic-file.ts';

/** Names of files of unfinished or killed puts. */
const UNFINISHED = /\.tmp\.[0-9a-f]{16}$/;
const READ_BYTES = 1 << 20;
/** Age of abandoned files. Our choice: a put that waits this long for its body has failed. */
const ABANDONED_NS = 3600n * SECOND_NS;

/** Opens a directory of objects by key. Throws `STORAGE_NOT_FOUND`, `STORAGE_FAILED`. */
export async function openFilesystemBucket(root: string): Promise<Bucket> {
  try {
    if ((await fs.stat(root)).isDirectory()) return new FilesystemBucket(root);
  } catch (cause) {
    if (systemCode(cause) !== 'ENOENT') throw mapError(cause, root);
    throw new CodedError('STORAGE_NOT_FOUND', `there is no directory ${root}`, { cause });
  }
  throw new CodedError('STORAGE_FAILED', `${root} is not a directory`);
}

class FilesystemBucket implements Bucket {
  readonly displayName: string;
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
    this.displayName = `file://${root}`;
  }

  async put(
    key: string,
    body: Body,
    { signal, ifAbsent = false }: ObjectPutOptions = {},
  ): Promise<void> {
    const path = this.#pathOf(key);
    try {
      await writeAtomic(path, unlessAborted(body, signal), {
        open: (at) => this.#open(at),
        publish: ifAbsent ? (from, to) => this.#publishNew(key, from, to) : undefined,
      });
      for (let at = dirname(path); at.length > this.#root.length; at = dirname(at)) {
        await syncDirectory(dirname(at));
      }
      await this.#removeUnfinished(dirname(path));
    } catch (error) {
      throw mapError(error, `object ${key}`);
    }
  }

  async #publishNew(key: string, temporary: string, path: string): Promise<void> {
    try {
      await publishNew(temporary, path);
    } catch (error) {
      if (!isCode(error, 'UNSUPPORTED_PUT')) throw error;
      if (await this.has(key)) {
        throw new CodedError('BLOB_EXISTS', `${path} already exists`, { cause: error });
      }
      await fs.rename(temporary, path);
    }
  }

  /** Retries if the directory is removed. Never creates the root: its disk may be unmounted. */
  async #open(path: string): Promise<fs.FileHandle> {
    for (let tries = 1; ; tries++) {
      try {
        return await openNew(path);
      } catch (error) {
        if (systemCode(error) !== 'ENOENT' || tries === 10) throw error;
      }
      await fs.stat(this.#root);
      await makeDirectories(dirname(path), DIRECTORY_MODE);
    }
  }

  async *get(key: string, { signal }: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const file = await this.#reading(key, () => fs.open(this.#pathOf(key), 'r'));
    try {
      for (let at = 0; ;) {
        signal?.throwIfAborted();
        const position = at;
        const buffer = Buffer.allocUnsafeSlow(READ_BYTES);
        const { bytesRead } = await this.#reading(key, () =>
          file.read(buffer, 0, buffer.length, position),
        );
        if (bytesRead === 0) return;
        at += bytesRead;
        yield buffer.subarray(0, bytesRead);
      }
    } finally {
      await file.close();
    }
  }

  async #reading<T>(key: string, task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } catch (error) {
      if (isMissing(error)) throw new BlobNotFoundError(blobId(key), { cause: error });
      throw mapError(error, `object ${key}`);
    }
  }

  async has(key: string): Promise<boolean> {
    try {
      return (await fs.stat(this.#pathOf(key))).isFile();
    } catch (error) {
      if (isMissing(error)) return false;
      throw mapError(error, `object ${key}`);
    }
  }

  async delete(key: string): Promise<void> {
    const path = this.#pathOf(key);
    try {
      await fs.rm(path, { force: true });
    } catch (error) {
      // A directory is not an object.
      if (!isMissing(error) && (await this.has(key))) throw mapError(error, `object ${key}`);
    }
    try {
      await syncDirectory(dirname(path));
      await this.#removeUnfinished(dirname(path));
      for (let at = dirname(path); at.length > this.#root.length; at = dirname(at)) {
        await fs.rmdir(at);
      }
    } catch (error) {
      // The directory is not empty, or it is already removed.
      const ends = ['ENOTEMPTY', 'EEXIST', 'ENOENT', 'ENOTDIR', 'EBUSY'];
      if (!ends.includes(systemCode(error) ?? '')) throw mapError(error, `object ${key}`);
    }
  }

  /** Removes files of killed puts beside an object. No listing shows them to other code. */
  async #removeUnfinished(directory: string): Promise<void> {
    for (const entry of await fs.readdir(directory, { withFileTypes: true })) {
      if (!entry.isFile() || !UNFINISHED.test(entry.name)) continue;
      const path = join(directory, entry.name);
      try {
        const { mtimeNs } = await fs.lstat(path, { bigint: true });
        if (systemClock.nowNs() - mtimeNs > ABANDONED_NS) await fs.rm(path, { force: true });
      } catch (error) {
        if (systemCode(error) !== 'ENOENT') throw error;
      }
    }
  }

  async *list(prefix: string, { signal }: SignalOptions = {}): AsyncIterable<string> {
    // Starts at the directory of the prefix, and skips its siblings.
    const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1);
    yield* this.#walk(folder, prefix, signal);
  }

  async *#walk(folder: string, prefix: string, signal?: AbortSignal): AsyncIterable<string> {
    for (const entry of await this.#entries(folder)) {
      signal?.throwIfAborted();
      const key = folder + entry.name;
      if (entry.isDirectory()) {
        if (key.startsWith(prefix) || prefix.startsWith(`${key}/`)) {
          yield* this.#walk(`${key}/`, prefix, signal);
        }
      } else if (entry.isFile() && key.startsWith(prefix) && !UNFINISHED.test(key)) yield key;
    }
  }

  async *listFolders(prefix: string, { signal }: SignalOptions = {}): AsyncIterable<string> {
    for (const entry of await this.#entries(prefix)) {
      signal?.throwIfAborted();
      if (!entry.isDirectory()) continue;
      // As in a bucket, a folder exists only if it has keys.
      for await (const key of this.#walk(`${prefix}${entry.name}/`, '', signal)) {
        yield key.slice(prefix.length).split('/')[0] ?? '';
        break;
      }
    }
  }

  async #entries(folder: string): Promise<Dirent[]> {
    try {
      return await fs.readdir(folder === '' ? this.#root : this.#pathOf(folder.slice(0, -1)), {
        withFileTypes: true,
      });
    } catch (error) {
      const isEmpty = folder !== '' && isMissing(error);
      if (!isEmpty) throw mapError(error, `list of ${folder} in ${this.#root}`);
    }
    // An empty list of an unmounted disk would look like a bucket without backups.
    await fs.stat(this.#root).catch((error: unknown) => {
      throw mapError(error, this.#root);
    });
    return [];
  }

  signedUrl(): Promise<never> {
    const text = `${this.displayName} is a directory: it has no URLs for others`;
    return Promise.reject(new CodedError('UNSUPPORTED_URL', text));
  }

  /** Throws `BAD_KEY` for a key that leads out of the root. */
  #pathOf(key: string): string {
    const isPlain = key
      .split('/')
      .every((part) => part !== '' && part !== '.' && part !== '..' && !part.includes('\0'));
    if (isPlain) return join(this.#root, key);
    throw new CodedError('BAD_KEY', `"${key}" cannot be the key of an object in a directory`);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const isMissing = (error: unknown): boolean =>
  ['ENOENT', 'ENOTDIR', 'EISDIR'].includes(systemCode(error) ?? '');

async function* unlessAborted(
  body: Body,
  signal: AbortSignal | undefined,
): AsyncIterable<Uint8Array> {
  signal?.throwIfAborted();
  for await (const piece of body) {
    signal?.throwIfAborted();
    yield piece;
  }
  signal?.throwIfAborted();
}
