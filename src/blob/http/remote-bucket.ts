import { CodedError, isCode, withRetry } from '../../base/index.ts';
import type { Body, Bucket, ObjectPutOptions } from '../bucket.ts';
import {
  type BlobId,
  blobId,
  type BlobMetadata,
  type BlobStorage,
  type Retention,
  type SignalOptions,
} from '../storage.ts';
import { retryPolicy, type StorageRetryOptions, withRetries } from '../wrappers/retrying.ts';
import { inParts } from './parts.ts';
import type { RemoteStorage } from './remote-storage.ts';

/** A failed range is retried alone. Our choice: 30 requests a second on a fast network. */
const RANGE_BYTES = 4 << 20;

/**
 * Objects of a cloud's bucket. Requests have the same bounds, watchdog and retries as those of a
 * repository. A long object is put in parts.
 */
export class RemoteBucket implements Bucket {
  readonly displayName: string;
  readonly #storage: RemoteStorage;
  readonly #retrying: BlobStorage;
  readonly #retries: StorageRetryOptions;
  /** Some services do not support conditional puts. */
  #hasExclusivePuts = true;

  constructor(storage: RemoteStorage, retries: StorageRetryOptions = {}) {
    this.displayName = storage.displayName;
    this.#storage = storage;
    this.#retrying = withRetries(storage, retries);
    this.#retries = retries;
  }

  async put(
    key: string,
    body: Body,
    { signal, ifAbsent = false }: ObjectPutOptions = {},
  ): Promise<void> {
    const id = blobId(key);
    const parts = inParts(body, this.#storage.partBytes);
    try {
      const first = await parts.next();
      const start = first.done === true ? [] : first.value;
      const second = await parts.next();
      if (second.done === true) {
        await this.#exclusively(id, ifAbsent, signal, (doNotRecreate) =>
          this.#retrying.putBlob(id, start, { signal, doNotRecreate }),
        );
        return;
      }
      await this.#storage.putInParts(id, pieces([start, second.value], parts), {
        signal,
        isExclusive: ifAbsent && this.#hasExclusivePuts,
        retry: (task, own) => this.#retry(own, task),
        exclusively: (complete) => this.#exclusively(id, ifAbsent, signal, complete),
      });
    } finally {
      await parts.return(undefined);
    }
  }

  /** Refuses an existing object, by the service's condition or by a look before the put. */
  async #exclusively(
    id: BlobId,
    ifAbsent: boolean,
    signal: AbortSignal | undefined,
    put: (doNotRecreate: boolean) => Promise<void>,
  ): Promise<void> {
    if (!ifAbsent) {
      await put(false);
      return;
    }
    if (this.#hasExclusivePuts) {
      try {
        await put(true);
        return;
      } catch (error) {
        if (!isCode(error, 'UNSUPPORTED_PUT')) throw error;
      }
    }
    if (await this.has(id, { signal })) throw exists(id, this.displayName);
    await put(false);
    // Set only now: the success shows that the service refused the condition, not the put.
    this.#hasExclusivePuts = false;
  }

  async *get(key: string, { signal }: SignalOptions = {}): AsyncIterable<Uint8Array> {
    const id = blobId(key);
    const before = await this.#retrying.getMetadata(id, { signal });
    const { lengthBytes: total } = before;
    if (total === 0) return;
    if (total <= RANGE_BYTES) {
      // Read the whole object: a range would cut off an object that has grown.
      yield await this.#retrying
        .getBlob(id, { lengthMax: RANGE_BYTES, signal })
        .catch((error: unknown) => {
          throw isCode(error, 'DAMAGED_BLOB') ? changed(id) : error;
        });
      return;
    }
    for (let offset = 0; offset < total;) {
      const lengthBytes = Math.min(RANGE_BYTES, total - offset);
      const range = { offset, lengthBytes, signal };
      yield await this.#retrying.getBlob(id, range).catch((error: unknown) => {
        // The object has shrunk.
        throw isCode(error, 'INVALID_RANGE') ? changed(id) : error;
      });
      offset += lengthBytes;
    }
    // Otherwise ranges of two versions could be mixed.
    if (!isSame(before, await this.#retrying.getMetadata(id, { signal }))) throw changed(id);
  }

  async has(key: string, options: SignalOptions = {}): Promise<boolean> {
    try {
      await this.#retrying.getMetadata(blobId(key), options);
      return true;
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND')) return false;
      throw error;
    }
  }

  delete(key: string, options: SignalOptions = {}): Promise<void> {
    return this.#retrying.deleteBlob(blobId(key), options);
  }

  async *list(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    const listing = { ...options, pageRetries: retryPolicy(this.#retries) };
    for await (const { objects } of this.#storage.listPages(prefix, listing)) {
      for (const { key } of objects) yield key.slice(this.#storage.prefix.length);
    }
  }

  async *listFolders(prefix: string, options: SignalOptions = {}): AsyncIterable<string> {
    const listing = { ...options, pageRetries: retryPolicy(this.#retries), delimiter: '/' };
    const start = this.#storage.prefix.length + prefix.length;
    const seen = new Set<string>();
    for await (const { folders } of this.#storage.listPages(prefix, listing)) {
      for (const folder of folders) {
        // A folder may be on two pages.
        if (seen.has(folder)) continue;
        seen.add(folder);
        yield folder.slice(start).replace(/\/$/, '');
      }
    }
  }

  signedUrl(key: string, lifetimeMs: number, options: SignalOptions = {}): Promise<string> {
    return this.#storage.signedUrl(blobId(key), lifetimeMs, options);
  }

  extendRetention(key: string, retention: Retention, options: SignalOptions = {}): Promise<void> {
    return this.#retrying.extendRetention(blobId(key), retention, options);
  }

  #retry<T>(signal: AbortSignal | undefined, task: () => Promise<T>): Promise<T> {
    return withRetry(task, { ...retryPolicy(this.#retries), signal });
  }

  close(): Promise<void> {
    return this.#retrying.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

async function* pieces(
  first: readonly Uint8Array[][],
  rest: AsyncIterable<Uint8Array[]>,
): AsyncGenerator<Uint8Array> {
  for (const part of first) yield* part;
  for await (const part of rest) yield* part;
}

const isSame = (a: BlobMetadata, b: BlobMetadata): boolean =>
  a.lengthBytes === b.lengthBytes && a.timestampNs === b.timestampNs;

function changed(id: BlobId): CodedError {
  const text = `blob ${id} was replaced while it was read`;
  return new CodedError('BLOB_CHANGED', text, { retry: 'backoff', facts: { blobId: id } });
}

function exists(id: BlobId, storage: string): CodedError {
  return new CodedError('BLOB_EXISTS', `blob ${id} is in ${storage} already`, {
    facts: { blobId: id },
  });
}
