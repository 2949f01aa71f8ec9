import { z } from 'zod';
import {
  asError,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  silentLogger,
} from '../../base/index.ts';
import {
  type Body,
  blobId,
  BlobNotFoundError,
  type Bucket,
  type ObjectPutOptions,
  type Retention,
  type SignalOptions,
} from '../../blob/index.ts';
import { damaged } from '../damage.ts';
import { decodeJson } from '../json-file.ts';
import { isSameObject } from './same-object.ts';
import {
  allVersionsFolder,
  byNumber,
  fileOf,
  isVersionsFolder,
  mayChange,
  nextVersion,
  runFolderOf,
  sealKey,
  sealsFolder,
  versionsFolder,
} from './version-keys.ts';

export interface SealOptions extends SignalOptions {
  /** The UID of the Backup or Restore. */
  readonly uid: string;
  /** The key of the file that is published after all others. */
  readonly last?: string | undefined;
  /** How it ended, as whoever publishes it is to write it elsewhere, too. */
  readonly end?: object | undefined;
  /** Right before each put and deletion. */
  readonly assertAllowed?: (() => void) | undefined;
}

export type UnsealOptions = Pick<SealOptions, 'assertAllowed' | 'signal'>;

interface Publishing extends SignalOptions {
  readonly allowed: () => void;
  /** Keys that were put, or may have been. */
  readonly published: string[];
}

/** A version may be removed by another process while it is looked for. */
const LOOKS_MAX = 5;
/** Versions that stay behind the newest one, for who is reading them, or has just decided to publish them. Our choice. */
const KEPT_BEHIND = 3;

const sealSchema = z.object({
  version: z.literal(1),
  /** Name of each file to the key of its version, below the folder. */
  files: z.record(z.string(), z.string()),
  end: z.looseObject({}).optional(),
});
type Seal = Pick<z.infer<typeof sealSchema>, 'files' | 'end'>;

/**
 * A bucket in which no key is put twice. Files of backups and restores keep their names for whoever works with this: while a backup or a restore
 * goes on, a put makes another version beside the file (`version-keys.ts`), and a read gets the newest one. When it is over, {@link seal}
 * puts each file under its own name, once. What lies elsewhere is put once, or refused.
 *
 * A file that was put under its own name before, by Velero or before the mode was switched on, is read and deleted as ever, and replaced once by the seal.
 */
export class WriteOnceBucket implements Bucket {
  readonly displayName: string;
  readonly #bucket: Bucket;
  readonly #logger: Logger;
  /** By file, what was put by this very object: what is published together was put by one process. */
  readonly #own = new Map<string, string>();

  constructor(bucket: Bucket, { logger = silentLogger }: { readonly logger?: Logger } = {}) {
    this.displayName = bucket.displayName;
    this.#bucket = bucket;
    this.#logger = logger;
  }

  async put(key: string, body: Body, options: ObjectPutOptions = {}): Promise<void> {
    if (!mayChange(key)) {
      await this.#putOnce(key, body, options);
      return;
    }
    const versions = await this.#versions(key, options);
    if (options.ifAbsent === true && (versions.length > 0 || (await this.#bucket.has(key)))) {
      throw exists(key, this.displayName);
    }
    // A listing may lack what was put a moment ago.
    const before = [...versions, ...this.#ownOf(key)].sort(byNumber).at(-1);
    const version = nextVersion(key, before);
    await this.#putNew(version, body, options);
    this.#own.set(key, version);
    const old = versions.slice(0, -KEPT_BEHIND);
    if (old.length > 0 && !(await this.#isSealed(key, options))) {
      await this.#removeOld(old, options);
    }
  }

  #ownOf(key: string): string[] {
    const own = this.#own.get(key);
    return own === undefined ? [] : [own];
  }

  /** Whether versions are about to be published, which must not go then. */
  async #isSealed(key: string, options: SignalOptions): Promise<boolean> {
    for await (const _ of this.#bucket.list(sealKey(runFolderOf(key) ?? '', ''), options)) {
      return true;
    }
    return false;
  }

  /** A key with a part at random is there only where an earlier try of this put has put it, and its answer was lost. */
  async #putNew(key: string, body: Body, options: ObjectPutOptions): Promise<void> {
    try {
      await this.#bucket.put(key, body, { ...options, ifAbsent: true });
    } catch (error) {
      if (!isCode(error, 'BLOB_EXISTS')) throw error;
    }
  }

  /** A put again of the same bytes is one whose answer was lost. Throws `BLOB_EXISTS` for others. */
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

  /** What cannot be removed only takes room: it goes with the backup or restore. */
  async #removeOld(versions: readonly string[], { signal }: SignalOptions): Promise<void> {
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

  /** Ascending. */
  async #versions(key: string, options: SignalOptions): Promise<string[]> {
    const found = await Array.fromAsync(this.#bucket.list(versionsFolder(key), options));
    return found.filter((each) => fileOf(each) === key).sort(byNumber);
  }

  /** The key that holds a file now. */
  async #current(key: string, options: SignalOptions): Promise<string> {
    return mayChange(key) ? ((await this.#versions(key, options)).at(-1) ?? key) : key;
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
    return mayChange(key) && (await this.#versions(key, options)).length > 0;
  }

  /** Versions from the first to the last, so that a kill leaves the file as it was. */
  async delete(key: string, options: SignalOptions = {}): Promise<void> {
    this.#own.delete(key);
    await this.#bucket.delete(key, options);
    if (!mayChange(key)) return;
    for (const version of await this.#versions(key, options)) {
      await this.#bucket.delete(version, options);
    }
  }

  /** Files under their own names, each once where the listing is by folder; in memory are those of one backup or restore. */
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

  /** Versions do not begin as their files do, where a prefix is the beginning of a name. */
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

  /** Of a file that is published: its versions are gone soon. */
  async extendRetention(
    key: string,
    retention: Retention,
    options: SignalOptions = {},
  ): Promise<void> {
    if (!this.#bucket.extendRetention) throw noLocks(this.displayName);
    await this.#bucket.extendRetention(key, retention, options);
  }

  /**
   * Publishes the files of a backup or a restore that is over: each is put under its own name, `last` after all others, and its versions are removed. What is
   * published is decided once, by an object that is put first: whoever goes on after a kill publishes the same, and drops what came later.
   * Nothing happens where there is no version. May be repeated. Returns the `end` that was decided with it. Throws what the bucket throws, `DAMAGED_ARCHIVE`, and
   * `FILES_DELETED` where somebody deletes the folder meanwhile: then nothing stays of what was published. Whoever deletes removes `last` first, then what decides
   * ({@link unseal}), and looks for the rest after that: what is put before that look is found by it, and what is put after it finds its decision gone.
   */
  async seal(
    folder: string,
    { uid, last, end, assertAllowed, signal }: SealOptions,
  ): Promise<object | undefined> {
    const allowed = assertAllowed ?? (() => undefined);
    const versions = await this.#versionsIn(folder, { signal });
    const key = sealKey(folder, uid);
    let decided = await this.#loadSeal(key, { signal });
    const published: string[] = [];
    if (!decided) {
      if (versions.size === 0) return end;
      // Whoever deletes removes it first.
      const isWhole = last === undefined || versions.has(last);
      if (!isWhole && !(await this.#bucket.has(last, { signal }))) throw filesDeleted(folder);
      decided = { files: this.#newest(folder, versions), ...(end && { end: { ...end } }) };
      allowed();
      const bytes = Buffer.from(`${JSON.stringify({ version: 1, ...decided })}\n`);
      try {
        await this.#bucket.put(key, [bytes], { signal, ifAbsent: true });
      } catch (error) {
        if (!isCode(error, 'BLOB_EXISTS')) throw error;
        // Its own, whose answer was lost, or that of another process, which was first.
        decided = (await this.#loadSeal(key, { signal })) ?? decided;
      }
    }
    const { files } = decided;
    const names = Object.keys(files).sort();
    const lastName = last?.slice(folder.length);
    // One who deletes may have passed the decision before it was made.
    const isLeft = lastName === undefined || (await this.#hasFile(folder, lastName, files, { signal })); // prettier-ignore
    const assertKept = async (isKept = true): Promise<void> => {
      if (isKept && (published.length === 0 || (await this.#bucket.has(key, { signal })))) return;
      for (const each of isKept ? published : [key]) {
        allowed();
        await this.#bucket.delete(each, { signal });
      }
      throw filesDeleted(folder);
    };
    await assertKept(isLeft);
    for (const name of names.filter((each) => each !== lastName)) {
      const known = versions.get(`${folder}${name}`) ?? [];
      const others = known.map((each) => each.slice(folder.length));
      const options = { allowed, signal, published };
      await this.#publishAny(folder, name, [...others, files[name] ?? ''], options);
    }
    await assertKept();
    if (lastName !== undefined && files[lastName] !== undefined) {
      published.length = 0;
      await this.#publish(folder, lastName, files[lastName], { allowed, signal, published });
      await assertKept();
    }
    for (const [file, keys] of versions) {
      allowed();
      this.#own.delete(file);
      await this.#removeOld(keys, { signal });
    }
    return decided.end ?? end;
  }

  /** Whether a file that is to be published is still there, or is published; also for one that is not to be. A listing may not show it yet. */
  async #hasFile(
    folder: string,
    name: string,
    files: Seal['files'],
    options: SignalOptions,
  ): Promise<boolean> {
    const version = files[name];
    if (version === undefined) return true;
    const isPublished = await this.#bucket.has(`${folder}${name}`, options);
    return isPublished || (await this.#bucket.has(`${folder}${version}`, options));
  }

  /** Removes what decides about a folder that is being deleted, after its `last` file and before the others; see {@link seal}. */
  async unseal(folder: string, { assertAllowed, signal }: UnsealOptions): Promise<void> {
    for await (const key of this.#bucket.list(sealsFolder(folder), { signal })) {
      assertAllowed?.();
      await this.#bucket.delete(key, { signal });
    }
  }

  /** The `end` that was decided with what is published of a UID; undefined where nothing is. */
  async sealedEnd(
    folder: string,
    { uid, signal }: SignalOptions & { readonly uid: string },
  ): Promise<object | undefined> {
    const decided = await this.#loadSeal(sealKey(folder, uid), { signal });
    return decided && (decided.end ?? {});
  }

  /** By name, below the folder: the version that was put here, or else the last one. */
  #newest(folder: string, versions: ReadonlyMap<string, readonly string[]>): Seal['files'] {
    const files: Record<string, string> = {};
    for (const [file, keys] of versions) {
      const own = this.#own.get(file);
      const version = own !== undefined && keys.includes(own) ? own : (keys.at(-1) ?? '');
      files[file.slice(folder.length)] = version.slice(folder.length);
    }
    return files;
  }

  async #versionsIn(folder: string, options: SignalOptions): Promise<Map<string, string[]>> {
    const found = await Array.fromAsync(this.#bucket.list(allVersionsFolder(folder), options));
    const versions = new Map<string, string[]>();
    for (const key of found) {
      const file = fileOf(key);
      if (file !== undefined) versions.set(file, [...(versions.get(file) ?? []), key]);
    }
    // A listing may lack what was put a moment ago: an older one must not be published, nor the rest without it.
    for (const [file, version] of this.#own) {
      const known = versions.get(file) ?? [];
      if (!file.startsWith(folder) || known.includes(version)) continue;
      if (file.slice(folder.length).includes('/')) continue;
      if (await this.#bucket.has(version, options)) versions.set(file, [...known, version]);
    }
    for (const keys of versions.values()) keys.sort(byNumber);
    return versions;
  }

  async #loadSeal(key: string, options: SignalOptions): Promise<Seal | undefined> {
    try {
      const found = await decodeJson(this.#bucket.get(key, options), key, sealSchema);
      const { files } = found;
      const folder = runFolderOf(key) ?? '';
      for (const [name, version] of Object.entries(files)) {
        const isOwn = !name.includes('/') && fileOf(`${folder}${version}`) === `${folder}${name}`;
        if (!isOwn) throw damaged(key, 'it names what is no version of its file');
      }
      return found;
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  /** The last one of the versions that is there: somebody may have removed it. The other files are no worse where none is. */
  async #publishAny(
    folder: string,
    name: string,
    versions: readonly string[],
    options: Publishing,
  ): Promise<void> {
    for (const version of versions.toReversed()) {
      try {
        await this.#publish(folder, name, version, options);
        return;
      } catch (error) {
        if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
        // Another process may have published it, and removed it then.
        if (await this.#bucket.has(`${folder}${name}`, options)) return;
        this.#logger.error({ key: `${folder}${version}` }, 'it is gone before it was published');
      }
    }
  }

  async #publish(
    folder: string,
    name: string,
    version: string,
    { allowed, signal, published }: Publishing,
  ): Promise<void> {
    const key = `${folder}${name}`;
    const from = `${folder}${version}`;
    allowed();
    if (!(await this.#bucket.has(key, { signal }))) {
      // Also where its answer is lost.
      published.push(key);
      try {
        await this.#bucket.put(key, this.#bucket.get(from, { signal }), { signal, ifAbsent: true });
        return;
      } catch (error) {
        if (!isCode(error, 'BLOB_EXISTS')) throw error;
        published.pop();
      }
    }
    const isThere = await this.#bucket.has(from, { signal });
    // Published before, and removed.
    if (!isThere) return;
    const isSame = await isSameObject(
      this.#bucket.get(key, { signal }),
      this.#bucket.get(from, { signal }),
    );
    if (isSame) return;
    allowed();
    this.#logger.warn(
      { key },
      'a file that was in the bucket before is replaced, although its location is written once',
    );
    await this.#bucket.put(key, this.#bucket.get(from, { signal }), { signal });
  }

  close(): Promise<void> {
    return this.#bucket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const filesDeleted = (folder: string): CodedError =>
  new CodedError('FILES_DELETED', `${folder} was deleted while its files were published`);

const noLocks = (place: string): CodedError =>
  new CodedError('UNSUPPORTED_PUT', `objects of ${place} cannot be locked`);

const exists = (key: string, place: string): CodedError =>
  new CodedError('BLOB_EXISTS', `${key} is in ${place} already`, { facts: { blobId: key } });

const changed = (key: string, cause: unknown): CodedError =>
  new CodedError('BLOB_CHANGED', `${key} was replaced while it was read`, {
    cause: asError(cause),
    retry: 'backoff',
  });
