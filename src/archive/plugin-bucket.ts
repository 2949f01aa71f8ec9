import { CodedError, isCode, messageOf } from '../base/index.ts';
import {
  type Body,
  blobId,
  BlobNotFoundError,
  type Bucket,
  type ObjectPutOptions,
  type SignalOptions,
} from '../blob/index.ts';
import type { ObjectStore } from '../plugin/index.ts';

export interface PluginBucketOptions {
  readonly bucket: string;
  /** The prefix of the location, without slashes at its ends. */
  readonly prefix: string;
  /** The plugin's provider, for messages. */
  readonly provider: string;
}

const NEVER = new AbortController().signal;

/**
 * A bucket behind a Velero object-store plugin. The plugin decides whether a put is atomic, and
 * Velero's own plugins rely on the service. Plugins return errors as text, so a read first asks
 * whether the object exists, as Velero does.
 */
export function pluginBucket(store: ObjectStore, options: PluginBucketOptions): Bucket {
  return new PluginBucket(store, options);
}

class PluginBucket implements Bucket {
  readonly displayName: string;
  readonly #store: ObjectStore;
  readonly #bucket: string;
  readonly #prefix: string;

  constructor(store: ObjectStore, { bucket, prefix, provider }: PluginBucketOptions) {
    this.#store = store;
    this.#bucket = bucket;
    this.#prefix = prefix === '' ? '' : `${prefix}/`;
    this.displayName = `${provider}:${bucket}/${this.#prefix}`;
  }

  /** Plugins have no conditional put, so `ifAbsent` looks first. */
  async put(
    key: string,
    body: Body,
    { signal = NEVER, ifAbsent = false }: ObjectPutOptions = {},
  ): Promise<void> {
    signal.throwIfAborted();
    if (ifAbsent && (await this.has(key, { signal }))) {
      throw new CodedError('BLOB_EXISTS', `${key} is at ${this.displayName} already`);
    }
    // A failed body must cancel the call. At a mere end, a plugin would store a part.
    const stop = new AbortController();
    const own = signal === NEVER ? stop.signal : AbortSignal.any([signal, stop.signal]);
    let failure: { readonly error: unknown } | undefined;
    async function* watched(): AsyncGenerator<Uint8Array> {
      try {
        yield* body;
      } catch (error) {
        failure = { error };
        stop.abort(error);
        throw error;
      }
    }
    const pieces = watched();
    try {
      await this.#asked(`put of ${key}`, signal, () =>
        this.#store.put(this.#bucket, this.#prefix + key, pieces, { signal: own }),
      );
    } catch (error) {
      throw failure ? failure.error : error;
    } finally {
      await pieces.return(undefined);
    }
  }

  async *get(key: string, { signal = NEVER }: SignalOptions = {}): AsyncIterable<Uint8Array> {
    if (!(await this.has(key, { signal }))) throw new BlobNotFoundError(blobId(key));
    try {
      yield* this.#store.get(this.#bucket, this.#prefix + key, { signal });
    } catch (error) {
      signal.throwIfAborted();
      throw this.#failure(`get of ${key}`, error);
    }
  }

  has(key: string, { signal = NEVER }: SignalOptions = {}): Promise<boolean> {
    return this.#asked(`look for ${key}`, signal, () =>
      this.#store.exists(this.#bucket, this.#prefix + key, { signal }),
    );
  }

  /** The plugins for Azure and Google Cloud fail if the object does not exist. */
  async delete(key: string, { signal = NEVER }: SignalOptions = {}): Promise<void> {
    try {
      await this.#asked(`delete of ${key}`, signal, () =>
        this.#store.delete(this.#bucket, this.#prefix + key, { signal }),
      );
    } catch (error) {
      const isThere = await this.has(key, { signal }).catch(() => true);
      signal.throwIfAborted();
      if (isThere) throw error;
    }
  }

  async *list(prefix: string, { signal = NEVER }: SignalOptions = {}): AsyncIterable<string> {
    const keys = await this.#asked(`list of ${prefix}`, signal, () =>
      this.#store.list(this.#bucket, this.#prefix + prefix, { signal }),
    );
    for (const key of keys) yield this.#below(key, prefix).slice(this.#prefix.length);
  }

  async *listFolders(
    prefix: string,
    { signal = NEVER }: SignalOptions = {},
  ): AsyncIterable<string> {
    const folders = await this.#asked(`list of ${prefix}`, signal, () =>
      this.#store.listCommonPrefixes(this.#bucket, '/', this.#prefix + prefix, { signal }),
    );
    const start = this.#prefix.length + prefix.length;
    for (const folder of folders) yield this.#below(folder, prefix).slice(start).replace(/\/$/, '');
  }

  /** A key outside the prefix would be deleted or read under a wrong name. */
  #below(key: string, prefix: string): string {
    if (key.startsWith(this.#prefix + prefix)) return key;
    const text = `${this.displayName}: the plugin lists "${key.slice(0, 300)}", which is not below "${this.#prefix + prefix}"`;
    throw new CodedError('BAD_LISTING', text);
  }

  signedUrl(
    key: string,
    lifetimeMs: number,
    { signal = NEVER }: SignalOptions = {},
  ): Promise<string> {
    return this.#asked(`sign ${key}`, signal, () =>
      this.#store.signedUrl(this.#bucket, this.#prefix + key, lifetimeMs, { signal }),
    );
  }

  async #asked<T>(what: string, signal: AbortSignal, task: () => Promise<T>): Promise<T> {
    try {
      return await task();
    } catch (error) {
      signal.throwIfAborted();
      throw this.#failure(what, error);
    }
  }

  /** The plugin's own words. A retry may help. */
  #failure(what: string, cause: unknown): CodedError {
    if (isCode(cause, 'BAD_LISTING')) return cause;
    const text = `${what} at ${this.displayName} failed: ${messageOf(cause)}`;
    return new CodedError('STORAGE_FAILED', text, { cause, retry: 'backoff' });
  }

  /** The plugin's process belongs to its manager. */
  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
