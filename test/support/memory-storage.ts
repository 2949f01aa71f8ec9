import { type Clock, CodedError, systemClock } from '../../src/base/index.ts';
import {
  type BlobId,
  type BlobMetadata,
  BlobNotFoundError,
  type BlobStorage,
  type GetOptions,
  type PutOptions,
  type Retention,
} from '../../src/blob/index.ts';
import { assertLength, invalidRange } from '../../src/blob/storage.ts';

export interface MemoryBlob {
  bytes: Buffer;
  timestampNs: bigint;
  retention?: Retention | undefined;
}

export interface MemoryStorageOptions {
  clock?: Clock;
  hasObjectLock?: boolean;
  /** `refuses` like old directories, `ignores` like some S3 services. */
  conditionalPut?: 'works' | 'refuses' | 'ignores';
}

/** A storage in memory. Tests may read and change its blobs. */
export class MemoryStorage implements BlobStorage {
  readonly displayName = 'memory';
  readonly hasObjectLock: boolean;
  readonly blobs = new Map<string, MemoryBlob>();
  /** All reads of a whole blob. */
  readonly wholeReads: { id: string; lengthBytes: number }[] = [];
  readonly #clock: Clock;
  readonly #conditionalPut: 'works' | 'refuses' | 'ignores';

  constructor(options: MemoryStorageOptions = {}) {
    this.#clock = options.clock ?? systemClock;
    this.hasObjectLock = options.hasObjectLock ?? false;
    this.#conditionalPut = options.conditionalPut ?? 'works';
  }

  /** A separate storage with the same blobs, and optionally another clock. */
  clone(clock: Clock = this.#clock): MemoryStorage {
    const copy = new MemoryStorage({
      clock,
      hasObjectLock: this.hasObjectLock,
      conditionalPut: this.#conditionalPut,
    });
    for (const [id, blob] of this.blobs) copy.blobs.set(id, { ...blob });
    return copy;
  }

  /** Puts like another program, without any checks. */
  set(id: string, bytes: Uint8Array): void {
    this.blobs.set(id, { bytes: Buffer.from(bytes), timestampNs: this.#clock.nowNs() });
  }

  async getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    await this.#turn(options.signal);
    const { bytes } = this.#blob(id);
    const { offset = 0, into } = options;
    const lengthBytes = options.lengthBytes ?? bytes.length - offset;
    if (lengthBytes < 0 || offset + lengthBytes > bytes.length) {
      throw invalidRange(id, offset, lengthBytes);
    }
    assertLength(id, lengthBytes, options.lengthMax);
    if (options.lengthBytes === undefined) this.wholeReads.push({ id, lengthBytes });
    const found = bytes.subarray(offset, offset + lengthBytes);
    if (!into || into.length < lengthBytes) return Uint8Array.from(found);
    into.set(found);
    return into.subarray(0, lengthBytes);
  }

  async getMetadata(
    id: BlobId,
    options: { signal?: AbortSignal | undefined } = {},
  ): Promise<BlobMetadata> {
    await this.#turn(options.signal);
    const { bytes, timestampNs } = this.#blob(id);
    return { id, lengthBytes: bytes.length, timestampNs };
  }

  async putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    const bytes = Buffer.concat(data);
    await this.#turn(options.signal);
    if (options.retention && !this.hasObjectLock) {
      throw new CodedError('UNSUPPORTED_PUT', 'memory has no object lock');
    }
    if (options.doNotRecreate === true) {
      if (this.#conditionalPut === 'refuses') {
        throw new CodedError('UNSUPPORTED_PUT', 'memory has no put-if-absent');
      }
      if (this.#conditionalPut === 'works' && this.blobs.has(id)) {
        throw new CodedError('BLOB_EXISTS', `blob ${id} already exists`);
      }
    }
    const { retention } = options;
    this.blobs.set(id, { bytes, timestampNs: this.#clock.nowNs(), retention });
  }

  async deleteBlob(id: BlobId, options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    await this.#turn(options.signal);
    this.blobs.delete(id);
  }

  async *listBlobs(
    prefix: string,
    options: { signal?: AbortSignal | undefined } = {},
  ): AsyncIterable<BlobMetadata> {
    await this.#turn(options.signal);
    for (const [id, { bytes, timestampNs }] of [...this.blobs]) {
      if (!id.startsWith(prefix)) continue;
      yield { id: id as BlobId, lengthBytes: bytes.length, timestampNs };
    }
  }

  async *listFolders(prefix: string): AsyncIterable<string> {
    await this.#turn(undefined);
    const names = [...this.blobs.keys()]
      .filter((id) => id.startsWith(prefix) && id.includes('/', prefix.length))
      .map((id) => id.slice(prefix.length, id.indexOf('/', prefix.length)));
    yield* new Set(names);
  }

  signedUrl(): Promise<never> {
    return Promise.reject(new CodedError('UNSUPPORTED_URL', 'memory has no URLs'));
  }

  async extendRetention(id: BlobId, retention: Retention): Promise<void> {
    await this.#turn(undefined);
    if (!this.hasObjectLock) throw new CodedError('UNSUPPORTED_PUT', 'memory has no object lock');
    this.#blob(id).retention = retention;
  }

  #blob(id: BlobId): MemoryBlob {
    const blob = this.blobs.get(id);
    if (!blob) throw new BlobNotFoundError(id);
    return blob;
  }

  /** Lets other tasks run between two requests. */
  async #turn(signal: AbortSignal | undefined): Promise<void> {
    await Promise.resolve();
    signal?.throwIfAborted();
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
