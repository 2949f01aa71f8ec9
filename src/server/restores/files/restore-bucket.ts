import {
  fileOfVersion,
  RestoreArchive,
  restoreFolder,
  restoreKey,
  type RestoreRef,
  sealsFolder,
} from '../../../archive/index.ts';
import {
  CodedError,
  codeOf,
  isCode,
  messageOf,
  redactAndCut,
  retryOf,
} from '../../../base/index.ts';
import {
  blobId,
  BlobNotFoundError,
  type Body,
  type Bucket,
  type ObjectPutOptions,
  refusesWrites,
  type SignalOptions,
} from '../../../blob/index.ts';
import { type ClusterFilesOptions, ClusterFiles } from './cluster-files.ts';

export interface RestoreBucketOptions extends Omit<ClusterFilesOptions, 'restore'> {
  readonly restore: RestoreRef;
  /** The name of the backup storage location, for messages. */
  readonly location: string;
  /**
   * Never writes. Without the right to read ConfigMaps, it shows only the bucket. Set by the CLI.
   */
  readonly isReader?: boolean;
}

/** Bytes of a body to keep in case the bucket refuses it. Longer files do not fit anyway. */
const BODY_BYTES_MAX = 5 << 20;

/**
 * The bucket as one Restore sees it. Keys outside the Restore's folder go to the bucket. The
 * cluster keeps files of the folder in two cases:
 * - The bucket refuses writes (no permission, read-only, full, or locked).
 * - The folder has files of another Restore of this name.
 * Once a file is kept, all later files are kept, so an older file never hides a newer one. {@link
 * upload} moves them into the bucket.
 */
export class RestoreBucket implements Bucket {
  readonly displayName: string;
  readonly #bucket: Bucket;
  readonly #options: RestoreBucketOptions;
  readonly #folder: string;
  readonly #files: ClusterFiles;
  #refusal: string | undefined;
  #isForeign: Promise<boolean> | undefined;

  constructor(bucket: Bucket, options: RestoreBucketOptions) {
    this.displayName = bucket.displayName;
    this.#bucket = bucket;
    this.#options = options;
    this.#folder = restoreFolder(options.restore.name);
    this.#files = new ClusterFiles(options);
  }

  /** The key relative to the folder; undefined for other keys. */
  #own(key: string): string | undefined {
    return key.startsWith(this.#folder) ? key.slice(this.#folder.length) : undefined;
  }

  async #index(signal: AbortSignal | undefined, options?: { readonly isFresh: boolean }) {
    try {
      return await this.#files.index(signal, options);
    } catch (error) {
      const isHidden = this.#options.isReader === true && retryOf(error) === 'never';
      if (!isHidden) throw error;
      return { entries: new Map<string, never>(), reason: undefined, isApart: false };
    }
  }

  /**
   * Marks the folder as owned by this Restore, before the first file of a run. If another Restore
   * owns it, its files stay, and the cluster keeps those of this Restore. Throws errors of the
   * bucket, except a refused write.
   */
  async claim(options: SignalOptions & { readonly assertAllowed: () => void }): Promise<void> {
    const { restore } = this.#options;
    const { signal } = options;
    const { entries, isApart } = await this.#index(signal, { isFresh: true });
    if (entries.size > 0 || isApart) return;
    try {
      if (await new RestoreArchive(this.#bucket).claim(restore, options)) return;
    } catch (error) {
      if (!refusesWrites(error)) throw error;
      this.#refusal = redactAndCut(messageOf(error));
      return;
    }
    options.assertAllowed();
    await this.#files.setApart({ reason: await this.#foreignText(signal), signal });
  }

  /** Whether the folder has files of another Restore. Files without an owner do not count. */
  async #hasOthers(signal: AbortSignal | undefined): Promise<boolean> {
    const { restore } = this.#options;
    if ((await this.#index(signal)).isApart) return true;
    const look = async (): Promise<boolean> => {
      const owner = await new RestoreArchive(this.#bucket).ownerOf(restore.name, { signal });
      return owner !== undefined && owner !== restore.uid;
    };
    this.#isForeign ??= look().catch((error: unknown) => {
      this.#isForeign = undefined;
      throw error;
    });
    return await this.#isForeign;
  }

  async put(key: string, body: Body, options: ObjectPutOptions = {}): Promise<void> {
    const own = this.#own(key);
    if (own === undefined) {
      await this.#bucket.put(key, body, options);
      return;
    }
    const { signal, ifAbsent = false } = options;
    const kept = new KeptBody(body);
    try {
      const { entries } = await this.#index(signal, { isFresh: !isOfJournal(own) });
      if (entries.size === 0 && this.#refusal === undefined) {
        this.#refusal = (await this.#hasOthers(signal))
          ? await this.#foreignText(signal)
          : await this.#refusalOf(key, kept, options);
        if (this.#refusal === undefined) return;
      }
      await this.#keep(own, await kept.all(), { ifAbsent, signal });
    } finally {
      await kept.close();
    }
  }

  /** Puts the file into the bucket. Returns the reason if the bucket refuses it. */
  async #refusalOf(
    key: string,
    kept: KeptBody,
    options: ObjectPutOptions,
  ): Promise<string | undefined> {
    try {
      await this.#bucket.put(key, kept.body, options);
      return undefined;
    } catch (error) {
      if (!refusesWrites(error)) throw error;
      const { ifAbsent = false, signal } = options;
      if (ifAbsent && (await this.#bucket.has(key, { signal }))) throw error;
      return redactAndCut(messageOf(error));
    }
  }

  async #foreignText(signal: AbortSignal | undefined): Promise<string> {
    const { restore } = this.#options;
    const owner = await new RestoreArchive(this.#bucket).ownerOf(restore.name, { signal });
    const whose = owner === undefined ? 'that nobody knows' : `with the UID ${owner}`;
    return `${this.#folder} there has the files of another Restore ${whose}, perhaps of another cluster`;
  }

  async #keep(
    own: string,
    bytes: Buffer | undefined,
    { ifAbsent, signal }: Pick<ObjectPutOptions, 'ifAbsent' | 'signal'>,
  ): Promise<void> {
    const reason = this.#refusal ?? '';
    try {
      await this.#files.put(own, bytes, { reason, signal, ifAbsent });
    } catch (error) {
      signal?.throwIfAborted();
      if (retryOf(error) !== 'never' || isCode(error, 'BLOB_EXISTS')) throw error;
      const text = `cannot store ${fileOfVersion(own) ?? own}: ${reason}; the cluster cannot keep it either: ${messageOf(error)}`;
      throw new CodedError('RESTORE_FILE_REFUSED', text, { cause: error });
    }
  }

  async *get(key: string, options: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const own = this.#own(key);
    if (own !== undefined) {
      const { entries } = await this.#index(options.signal, { isFresh: !isOfJournal(own) });
      const entry = entries.get(own);
      if (entry && entry.isLost !== true) {
        yield await this.#files.get(own, options.signal);
        return;
      }
      if (entry && isOfJournal(own)) throw notKept(this.#options.restore.name);
      if (await this.#hasOthers(options.signal)) throw new BlobNotFoundError(blobId(key));
    }
    yield* this.#bucket.get(key, options);
  }

  async has(key: string, options: SignalOptions = {}): Promise<boolean> {
    const own = this.#own(key);
    if (own !== undefined) {
      const { entries } = await this.#index(options.signal, { isFresh: true });
      const entry = entries.get(own);
      if (entry && entry.isLost !== true) return true;
      if (await this.#hasOthers(options.signal)) return false;
    }
    return this.#bucket.has(key, options);
  }

  async delete(key: string, options: SignalOptions = {}): Promise<void> {
    const own = this.#own(key);
    if (own !== undefined) {
      const { signal } = options;
      const { entries } = await this.#index(signal);
      const wasKept = entries.has(own);
      await this.#files.delete(own, signal);
      if (await this.#hasOthers(signal)) return;
      if (wasKept && !(await this.#bucket.has(key, options))) return;
    }
    await this.#bucket.delete(key, options);
  }

  /** Lists the owner file last, so that a killed deletion still knows the owner of the rest. */
  async *list(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    if (this.#own(prefix) === undefined) {
      yield* this.#bucket.list(prefix, options);
      return;
    }
    const { entries } = await this.#index(options.signal, { isFresh: true });
    // Lost journal segments are listed, so that a reader sees the gap.
    const kept = [...entries.values()]
      .filter((each) => each.isLost !== true || isOfJournal(each.key))
      .map((each) => `${this.#folder}${each.key}`);
    yield* kept.filter((key) => key.startsWith(prefix));
    if (await this.#hasOthers(options.signal)) return;
    const owner = restoreKey(this.#options.restore.name, 'owner');
    let hasOwner = false;
    for await (const key of this.#bucket.list(prefix, options)) {
      if (key === owner) hasOwner = true;
      else if (!kept.includes(key)) yield key;
    }
    if (hasOwner) yield owner;
  }

  listFolders(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    return this.#bucket.listFolders(prefix, options);
  }

  async signedUrl(key: string, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    await this.assertInBucket(key, options);
    return this.#bucket.signedUrl(key, lifetimeMs, options);
  }

  /** Throws `UNSUPPORTED_URL` if the cluster keeps the file or another Restore owns it. */
  async assertInBucket(key: string, { signal }: SignalOptions = {}): Promise<void> {
    const own = this.#own(key);
    if (own === undefined) return;
    const { restore, namespace } = this.#options;
    const { entries } = await this.#index(signal, { isFresh: true });
    if (!entries.has(own) && !(await this.#hasOthers(signal))) return;
    const text = `the file is not in the bucket: ConfigMaps in namespace ${namespace} keep the files of restore ${restore.name}, and "longshore restore describe" and "longshore restore logs" read them`;
    throw new CodedError('UNSUPPORTED_URL', text);
  }

  /**
   * Tries to move kept files into the bucket. Returns a sentence about files that stay in the
   * cluster, if any. Skips journals, because they are useless after the run. Throws errors of the
   * API server and of a bucket that is away.
   */
  async upload({
    signal,
    assertAllowed,
  }: SignalOptions & { readonly assertAllowed: () => void }): Promise<string | undefined> {
    const { entries, reason } = await this.#index(signal, { isFresh: true });
    if (entries.size === 0) return undefined;
    const isForeign = await this.#hasOthers(signal);
    let why = isForeign ? await this.#foreignText(signal) : (reason ?? '');
    for (const [own, { isLost }] of isForeign ? [] : entries) {
      if (isLost === true || isOfJournal(own)) continue;
      const bytes = await this.#files.get(own, signal);
      assertAllowed();
      try {
        await this.#bucket.put(`${this.#folder}${own}`, [bytes], { signal });
        await this.#files.delete(own, signal);
      } catch (error) {
        if (!refusesWrites(error) && !isClusterRefusal(error)) throw error;
        why = redactAndCut(messageOf(error));
      }
    }
    const { entries: left } = await this.#index(signal, { isFresh: true });
    // Users do not read journals, nor the list of files to publish.
    const named = [...left.values()].filter(
      ({ key }) => !isOfJournal(key) && !key.startsWith(sealsFolder('')),
    );
    return named.length === 0 ? undefined : this.#sentence(named, why);
  }

  #sentence(named: readonly { readonly key: string; readonly isLost?: unknown }[], why: string) {
    const { location, namespace, restore } = this.#options;
    const { name } = restore;
    const namesOf = (isLost: boolean): string[] => {
      const keys = named.filter((each) => (each.isLost === true) === isLost).map(({ key }) => key);
      return [...new Set(keys.map((key) => fileOfVersion(key) ?? key))].sort();
    };
    const [held, lost] = [namesOf(false), namesOf(true)];
    const gone = lost.length > 0 ? `. Too long for a ConfigMap, and lost: ${lost.join(', ')}` : '';
    const kept =
      held.length > 0
        ? `. ConfigMaps in namespace ${namespace} keep ${held.join(', ')} until the Restore is deleted: "longshore restore describe ${name}" and "longshore restore logs ${name}" read them`
        : '';
    return `files of the restore are not stored in backup storage location ${location}: ${why}${kept}${gone}`;
  }

  /** Deletes all kept files. May be repeated. */
  deleteKept(signal: AbortSignal): Promise<void> {
    return this.#files.deleteAll(signal);
  }

  close(): Promise<void> {
    return this.#bucket.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

const notKept = (name: string): CodedError =>
  new CodedError(
    'JOURNAL_NOT_KEPT',
    `the journal of restore ${name} was too long for the cluster, and its location cannot be written: an interrupted run cannot go on. Create another Restore`,
  );

/** The API server refuses a change of the ConfigMaps. */
const isClusterRefusal = (error: unknown): boolean =>
  codeOf(error)?.startsWith('KUBE_') === true && retryOf(error) === 'never';

const isOfJournal = (own: string): boolean => own.startsWith('longshore-journal/');

/** A body for one put that can be read again if the put fails. Only short bodies are kept. */
class KeptBody {
  readonly #given: Body;
  #source: AsyncIterator<Uint8Array> | Iterator<Uint8Array> | undefined;
  readonly #pieces: Uint8Array[] = [];
  #bytes = 0;

  constructor(body: Body) {
    this.#given = body;
  }

  /** For one put. Arrays stay arrays, because stores use their length. */
  get body(): Body {
    return Array.isArray(this.#given) ? this.#given : this.#read();
  }

  async *#read(): AsyncGenerator<Uint8Array> {
    for (let piece = await this.#next(); piece; piece = await this.#next()) yield piece;
  }

  async #next(): Promise<Uint8Array | undefined> {
    this.#source ??=
      Symbol.asyncIterator in this.#given
        ? this.#given[Symbol.asyncIterator]()
        : this.#given[Symbol.iterator]();
    const next = await this.#source.next();
    if (next.done === true) return undefined;
    this.#bytes += next.value.length;
    if (this.#bytes <= BODY_BYTES_MAX) this.#pieces.push(next.value);
    return next.value;
  }

  /** Undefined if the body is too long. */
  async all(): Promise<Buffer | undefined> {
    while (this.#bytes <= BODY_BYTES_MAX && (await this.#next()));
    return this.#bytes > BODY_BYTES_MAX ? undefined : Buffer.concat(this.#pieces);
  }

  async close(): Promise<void> {
    await this.#source?.return?.();
  }
}
