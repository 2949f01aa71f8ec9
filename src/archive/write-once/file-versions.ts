import { define, type Logger, messageOf } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import {
  allVersionsFolder,
  byNumber,
  fileOf,
  nextVersion,
  versionsFolder,
} from './version-keys.ts';

/** The versions of files that are kept apart until they are published (`version-keys.ts`). */
export class FileVersions {
  readonly #bucket: Bucket;
  readonly #logger: Logger;
  /**
   * By file, what was put by this very object: what is published together was put by one process.
   */
  readonly #own = new Map<string, string>();

  constructor(bucket: Bucket, logger: Logger) {
    this.#bucket = bucket;
    this.#logger = logger;
  }

  /** Ascending. */
  async of(key: string, options: SignalOptions): Promise<string[]> {
    const found = await Array.fromAsync(this.#bucket.list(versionsFolder(key), options));
    return found.filter((each) => fileOf(each) === key).sort(byNumber);
  }

  /**
   * The key of the next version, after those of a listing, which may lack what was put a moment
   * ago.
   */
  next(key: string, listed: readonly string[]): string {
    const own = this.#own.get(key);
    const known = own === undefined ? listed : [...listed, own];
    return nextVersion(key, [...known].sort(byNumber).at(-1));
  }

  /** Was put just now. */
  notePut(key: string, version: string): void {
    this.#own.set(key, version);
  }

  forget(key: string): void {
    this.#own.delete(key);
  }

  /** By file, ascending; of those right in a folder. */
  async in(folder: string, options: SignalOptions): Promise<Map<string, string[]>> {
    const found = await Array.fromAsync(this.#bucket.list(allVersionsFolder(folder), options));
    const versions = new Map<string, string[]>();
    for (const key of found) {
      const file = fileOf(key);
      if (file !== undefined) versions.set(file, [...(versions.get(file) ?? []), key]);
    }
    // A listing may lack what was put a moment ago: an older one must not be published, nor the
    // rest without it.
    for (const [file, version] of this.#own) {
      const known = versions.get(file) ?? [];
      if (!file.startsWith(folder) || known.includes(version)) continue;
      if (file.slice(folder.length).includes('/')) continue;
      if (await this.#bucket.has(version, options)) versions.set(file, [...known, version]);
    }
    for (const keys of versions.values()) keys.sort(byNumber);
    return versions;
  }

  /** By name, below the folder: the version that was put here, or else the last one. */
  newest(folder: string, versions: ReadonlyMap<string, readonly string[]>): Record<string, string> {
    const files: Record<string, string> = {};
    for (const [file, keys] of versions) {
      const own = this.#own.get(file);
      const version = own !== undefined && keys.includes(own) ? own : (keys.at(-1) ?? '');
      define(files, file.slice(folder.length), version.slice(folder.length));
    }
    return files;
  }

  /** What cannot be removed only takes room: it goes with the backup or restore. */
  async remove(versions: readonly string[], { signal }: SignalOptions): Promise<void> {
    for (const key of versions) {
      try {
        await this.#bucket.delete(key, { signal });
      } catch (error) {
        signal?.throwIfAborted();
        this.#logger.debug({ key, error: messageOf(error) }, 'an old version of a file stays');
        return;
      }
    }
  }
}
