import { define, type Logger, messageOf } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import {
  allVersionsFolder,
  byNumber,
  fileOf,
  nextVersion,
  versionsFolder,
} from './version-keys.ts';

/** The versions of files before they are published (`version-keys.ts`). */
export class FileVersions {
  readonly #bucket: Bucket;
  readonly #logger: Logger;
  /** Versions that this process put. Files that are published together come from one process. */
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

  /** The key of the next version. The listing may lack the newest ones. */
  next(key: string, listed: readonly string[]): string {
    const own = this.#own.get(key);
    const known = own === undefined ? listed : [...listed, own];
    return nextVersion(key, [...known].sort(byNumber).at(-1));
  }

  /** Records a successful put. */
  notePut(key: string, version: string): void {
    this.#own.set(key, version);
  }

  forget(key: string): void {
    this.#own.delete(key);
  }

  /** Versions by file, ascending, for files directly in a folder. */
  async in(folder: string, options: SignalOptions): Promise<Map<string, string[]>> {
    const found = await Array.fromAsync(this.#bucket.list(allVersionsFolder(folder), options));
    const versions = new Map<string, string[]>();
    for (const key of found) {
      const file = fileOf(key);
      if (file !== undefined) versions.set(file, [...(versions.get(file) ?? []), key]);
    }
    // A listing may lack a new version. An older version must not be published, nor the other files
    // without it.
    for (const [file, version] of this.#own) {
      const known = versions.get(file) ?? [];
      if (!file.startsWith(folder) || known.includes(version)) continue;
      if (file.slice(folder.length).includes('/')) continue;
      if (await this.#bucket.has(version, options)) versions.set(file, [...known, version]);
    }
    for (const keys of versions.values()) keys.sort(byNumber);
    return versions;
  }

  /** The version of each file, by name below the folder: our own put, or else the last version. */
  newest(folder: string, versions: ReadonlyMap<string, readonly string[]>): Record<string, string> {
    const files: Record<string, string> = {};
    for (const [file, keys] of versions) {
      const own = this.#own.get(file);
      const version = own !== undefined && keys.includes(own) ? own : (keys.at(-1) ?? '');
      define(files, file.slice(folder.length), version.slice(folder.length));
    }
    return files;
  }

  /** Failures are only logged. The rest is deleted with the backup or restore. */
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
