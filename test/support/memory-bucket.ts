import { CodedError } from '../../src/base/index.ts';
import {
  type Body,
  blobId,
  BlobNotFoundError,
  type Bucket,
  type ObjectPutOptions,
  type SignalOptions,
} from '../../src/blob/index.ts';

/** A bucket in memory. Tests may read and change its objects. */
export class MemoryBucket implements Bucket {
  readonly displayName = 'memory';
  readonly objects = new Map<string, Buffer>();

  async put(
    key: string,
    body: Body,
    { signal, ifAbsent = false }: ObjectPutOptions = {},
  ): Promise<void> {
    const pieces: Uint8Array[] = [];
    for await (const piece of body) {
      signal?.throwIfAborted();
      pieces.push(Buffer.from(piece));
    }
    signal?.throwIfAborted();
    if (ifAbsent && this.objects.has(key)) throw new CodedError('BLOB_EXISTS', `${key} is there`);
    this.objects.set(key, Buffer.concat(pieces));
  }

  async *get(key: string, { signal }: SignalOptions = {}): AsyncIterable<Uint8Array> {
    await Promise.resolve();
    const bytes = this.objects.get(key);
    if (!bytes) throw new BlobNotFoundError(blobId(key));
    for (let at = 0; at < bytes.length; at += 100_000) {
      signal?.throwIfAborted();
      yield Buffer.from(bytes.subarray(at, at + 100_000));
    }
  }

  async has(key: string): Promise<boolean> {
    await Promise.resolve();
    return this.objects.has(key);
  }

  async delete(key: string): Promise<void> {
    await Promise.resolve();
    this.objects.delete(key);
  }

  async *list(prefix: string): AsyncIterable<string> {
    await Promise.resolve();
    for (const key of [...this.objects.keys()].sort()) if (key.startsWith(prefix)) yield key;
  }

  async *listFolders(prefix: string): AsyncIterable<string> {
    const names = new Set<string>();
    for await (const key of this.list(prefix)) {
      const [name = '', ...rest] = key.slice(prefix.length).split('/');
      if (rest.length > 0) names.add(name);
    }
    yield* names;
  }

  signedUrl(): Promise<never> {
    return Promise.reject(new CodedError('UNSUPPORTED_URL', 'memory has no URLs'));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
