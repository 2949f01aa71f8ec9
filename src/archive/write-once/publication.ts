import { z } from 'zod';
import { CodedError, isCode, type Logger, lookup } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { damaged } from '../damaged-error.ts';
import { decodeJson } from '../json-file.ts';
import type { FileVersions } from './file-versions.ts';
import { isSameObject } from './same-object.ts';
import { fileOf, runFolderOf, sealKey, sealsFolder } from './version-keys.ts';

export interface SealOptions extends SignalOptions {
  /** The UID of the Backup or Restore. */
  readonly uid: string;
  /** The key of the file that is published after all others. */
  readonly last?: string | undefined;
  /** The end of the run. The caller writes it to the status, too. */
  readonly end?: object | undefined;
  /** Called before each put and deletion. */
  readonly assertAllowed?: (() => void) | undefined;
}

export type UnsealOptions = Pick<SealOptions, 'assertAllowed' | 'signal'>;

/** The UID of the Backup or Restore. */
export interface SealedEndOptions extends SignalOptions {
  readonly uid: string;
}

interface Publishing extends SignalOptions {
  readonly allowed: () => void;
  /** Keys that were put, or may have been. */
  readonly published: string[];
}

const sealSchema = z.object({
  version: z.literal(1),
  /** Name of each file to the key of its version, below the folder. */
  files: z.record(z.string(), z.string()),
  end: z.looseObject({}).optional(),
});
type Seal = Pick<z.infer<typeof sealSchema>, 'files' | 'end'>;

/** Publishes versions of a finished run under the names of their files, once. */
export class Publication {
  readonly #bucket: Bucket;
  readonly #versions: FileVersions;
  readonly #logger: Logger;

  constructor(bucket: Bucket, versions: FileVersions, logger: Logger) {
    this.#bucket = bucket;
    this.#versions = versions;
    this.#logger = logger;
  }

  /**
   * Publishes the files of a finished backup or restore: puts each under its own name, `last` after
   * all others, and removes the versions. Does nothing without versions. Repeatable. Returns the
   * decided `end`.
   * A decision object is put first. After a kill, the next process publishes the same versions and
   * drops later ones.
   * A deletion removes `last` first, then the decision ({@link unseal}), then lists the rest. Files
   * put before this listing are found by it. Files put after it find no decision, and are removed
   * again.
   * Throws `DAMAGED_ARCHIVE`, errors of the bucket, and `FILES_DELETED` if the folder is deleted
   * meanwhile.
   */
  async seal(
    folder: string,
    { uid, last, end, assertAllowed, signal }: SealOptions,
  ): Promise<object | undefined> {
    const allowed = assertAllowed ?? (() => undefined);
    const versions = await this.#versions.in(folder, { signal });
    const key = sealKey(folder, uid);
    let decided = await this.#loadSeal(key, { signal });
    const published: string[] = [];
    if (!decided) {
      if (versions.size === 0) return end;
      // A deletion removes `last` first.
      const isWhole = last === undefined || versions.has(last);
      if (!isWhole && !(await this.#bucket.has(last, { signal }))) throw filesDeleted(folder);
      decided = { files: this.#versions.newest(folder, versions), ...(end && { end: { ...end } }) };
      allowed();
      const bytes = Buffer.from(`${JSON.stringify({ version: 1, ...decided })}\n`);
      try {
        await this.#bucket.put(key, [bytes], { signal, ifAbsent: true });
      } catch (error) {
        if (!isCode(error, 'BLOB_EXISTS')) throw error;
        // Our own decision after a lost answer, or that of a faster process.
        decided = (await this.#loadSeal(key, { signal })) ?? decided;
      }
    }
    const { files } = decided;
    const names = Object.keys(files).sort();
    const lastName = last?.slice(folder.length);
    // A deletion may have looked for the decision before it was made.
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
      await this.#publishAny(folder, name, [...others, lookup(files, name) ?? ''], options);
    }
    await assertKept();
    const lastVersion = lastName === undefined ? undefined : lookup(files, lastName);
    if (lastName !== undefined && lastVersion !== undefined) {
      published.length = 0;
      await this.#publish(folder, lastName, lastVersion, {
        allowed,
        signal,
        published,
      });
      await assertKept();
    }
    for (const [file, keys] of versions) {
      allowed();
      this.#versions.forget(file);
      await this.#versions.remove(keys, { signal });
    }
    return decided.end ?? end;
  }

  /** Whether a file still exists, or is no part of the decision. A listing may not show it yet. */
  async #hasFile(
    folder: string,
    name: string,
    files: Seal['files'],
    options: SignalOptions,
  ): Promise<boolean> {
    const version = lookup(files, name);
    if (version === undefined) return true;
    const isPublished = await this.#bucket.has(`${folder}${name}`, options);
    return isPublished || (await this.#bucket.has(`${folder}${version}`, options));
  }

  /**
   * Removes a deleted folder's decisions, after `last` and before other files; see {@link seal}.
   */
  async unseal(folder: string, { assertAllowed, signal }: UnsealOptions): Promise<void> {
    for await (const key of this.#bucket.list(sealsFolder(folder), { signal })) {
      assertAllowed?.();
      await this.#bucket.delete(key, { signal });
    }
  }

  /** The `end` that was decided for a UID, or undefined. */
  async sealedEnd(folder: string, { uid, signal }: SealedEndOptions): Promise<object | undefined> {
    const decided = await this.#loadSeal(sealKey(folder, uid), { signal });
    return decided && (decided.end ?? {});
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

  /** Publishes the last existing version. The other files are published even if none exists. */
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
        // A faster process may have published the file and removed its version.
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
      // Also counts a put without an answer.
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
}

const filesDeleted = (folder: string): CodedError =>
  new CodedError('FILES_DELETED', `${folder} was deleted while its files were published`);
