import { asError, CodedError, isCode, type Logger, silentLogger } from '../../base/index.ts';
import {
  type Body,
  blobId,
  BlobNotFoundError,
  type Bucket,
  type ObjectPutOptions,
  type Retention,
  type SignalOptions,
} from '../../blob/index.ts';
import { FileVersions } from './file-versions.ts';
import {
  Publication,
  type SealedEndOptions,
  type SealOptions,
  type UnsealOptions,
} from './publication.ts';
import { isSameObject } from './same-object.ts';
import {
  allVersionsFolder,
  fileOf,
  isVersionsFolder,
  mayChange,
  runFolderOf,
  sealKey,
} from './version-keys.ts';

/** Retries of a read: another process may remove a version meanwhile. */
const LOOKS_MAX = 5;
/** Older versions, kept for readers and for processes that publish them. Our choice. */
const KEPT_BEHIND = 3;

/**
 * A bucket that puts no key twice. During a backup or restore, a put makes another version beside
 * the file (`version-keys.ts`), and a read returns the newest version. At the end,
 * {@link WriteOnceBucket.seal} puts each file under its own name, once. Other keys are put once; a
 * second put is refused.
 *
 * Files that Velero, or an earlier mode, put under their own names can be read and deleted. The
 * seal replaces them once.
 */
export class WriteOnceBucket implements Bucket {
  readonly displayName: string;
  readonly #bucket: Bucket;
  readonly #versions: FileVersions;
  readonly #publication: Publication;

  constructor(bucket: Bucket, { logger = silentLogger }: { readonly logger?: Logger } = {}) {
    this.displayName = bucket.displayName;
    this.#bucket = bucket;
    this.#versions = new FileVersions(bucket, logger);
    this.#publication = new Publication(bucket, this.#versions, logger);
  }

  async put(key: string, body: Body, options: ObjectPutOptions = {}): Promise<void> {
    if (!mayChange(key)) {
      await this.#putOnce(key, body, options);
      return;
    }
    const versions = await this.#versions.of(key, options);
    if (options.ifAbsent === true && (versions.length > 0 || (await this.#bucket.has(key)))) {
      throw exists(key, this.displayName);
    }
    const version = this.#versions.next(key, versions);
    await this.#putNew(version, body, options);
    this.#versions.notePut(key, version);
    const old = versions.slice(0, -KEPT_BEHIND);
    if (old.length > 0 && !(await this.#isSealed(key, options))) {
      // Removes the newest first. If the oldest are locked, the others still go.
      await this.#versions.remove(old.toReversed(), options);
    }
  }

  /** Whether versions are about to be published, which must not be deleted then. */
  async #isSealed(key: string, options: SignalOptions): Promise<boolean> {
    for await (const _ of this.#bucket.list(sealKey(runFolderOf(key) ?? '', ''), options)) {
      return true;
    }
    return false;
  }

  /** If this random key exists, an earlier try has succeeded without an answer. */
  async #putNew(key: string, body: Body, options: ObjectPutOptions): Promise<void> {
    try {
      await this.#bucket.put(key, body, { ...options, ifAbsent: true });
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS')) throw error;
    }
  }

  /** A second put of the same bytes counts as a retry. Throws `BLOB_EXISTS` for other bytes. */
  async #putOnce(key: string, body: Body, options: ObjectPutOptions): Promise<void> {
    try {
      await this.#bucket.put(key, body, { ...options, ifAbsent: true });
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS') || options.ifAbsent === true || !Array.isArray(body)) {
        throw error;
      }
      if (!(await isSameObject(this.#bucket.get(key, options), body as Uint8Array[]))) throw error;
    }
  }

  /** The current key of a file. */
  async #current(key: string, options: SignalOptions): Promise<string> {
    return mayChange(key) ? ((await this.#versions.of(key, options)).at(-1) ?? key) : key;
  }

  async *get(key: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    for (let looks = 1; ; looks++) {
      const current = await this.#current(key, options);
      let hasBegun = false;
      try {
        for await (const piece of this.#bucket.get(current, options)) {
          hasBegun = true;
          yield piece;
        }
        return;
      } catch (error) {
        if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
        if (current === key) throw new BlobNotFoundError(blobId(key), { cause: error });
        if (hasBegun || looks === LOOKS_MAX) throw changed(key, error);
      }
    }
  }

  async has(key: string, options: SignalOptions = {}): Promise<boolean> {
    if (await this.#bucket.has(key, options)) return true;
    return mayChange(key) && (await this.#versions.of(key, options)).length > 0;
  }

  /** Deletes versions from the first to the last, so that a kill leaves the file unchanged. */
  async delete(key: string, options: SignalOptions = {}): Promise<void> {
    this.#versions.forget(key);
    await this.#bucket.delete(key, options);
    if (!mayChange(key)) return;
    for (const version of await this.#versions.of(key, options)) {
      await this.#bucket.delete(version, options);
    }
  }

  /**
   * Lists files under their own names, each once if the listing is sorted by folder. Memory holds
   * the names of one backup or restore.
   */
  async *list(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    const seen = new Set<string>();
    let folder: string | undefined;
    for (const each of this.#prefixes(prefix)) {
      for await (const found of this.#bucket.list(each, options)) {
        const key = fileOf(found) ?? found;
        if (mayChange(key)) {
          const own = runFolderOf(key);
          if (own !== folder) seen.clear();
          folder = own;
          if (seen.has(key)) continue;
          seen.add(key);
        }
        yield key;
      }
    }
  }

  /** If a prefix ends within a name, versions of these files have another prefix. */
  #prefixes(prefix: string): string[] {
    const at = prefix.lastIndexOf('/') + 1;
    const isOfNames = at < prefix.length && runFolderOf(prefix) !== undefined;
    if (!isOfNames || !mayChange(prefix)) return [prefix];
    return [prefix, `${allVersionsFolder(prefix.slice(0, at))}${prefix.slice(at)}`];
  }

  async *listFolders(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    for await (const name of this.#bucket.listFolders(prefix, options)) {
      if (!isVersionsFolder(name)) yield name;
    }
  }

  async signedUrl(key: string, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    return this.#bucket.signedUrl(await this.#current(key, options), lifetimeMs, options);
  }

  /** For published files only, whose versions are deleted soon. */
  async extendRetention(
    key: string,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    if (!this.#bucket.extendRetention) throw noLocks(this.displayName);
    await this.#bucket.extendRetention(key, retention, options);
  }

  seal(folder: string, options: SealOptions): Promise<object | undefined> {
    return this.#publication.seal(folder, options);
  }

  unseal(folder: string, options: UnsealOptions): Promise<void> {
    return this.#publication.unseal(folder, options);
  }

  sealedEnd(folder: string, options: SealedEndOptions): Promise<object | undefined> {
    return this.#publication.sealedEnd(folder, options);
  }

  close(): Promise<void> {
    return this.#bucket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const noLocks = (place: string): CodedError =>
  new CodedError('UNSUPPORTED_PUT', `objects of ${place} cannot be locked`);

const exists = (key: string, place: string): CodedError =>
  new CodedError('BLOB_EXISTS', `${key} is in ${place} already`, { facts: { blobId: key } });

const changed = (key: string, cause: unknown): CodedError =>
  new CodedError('BLOB_CHANGED', `${key} was replaced while it was read`, {
    cause: asError(cause),
    retry: 'backoff',
  });
