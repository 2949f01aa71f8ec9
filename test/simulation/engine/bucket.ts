import { CodedError, type Nanoseconds } from '../../../src/base/index.ts';
import {
  type BlobId,
  type BlobMetadata,
  BlobNotFoundError,
  type BlobStorage,
  type GetOptions,
  type PutOptions,
} from '../../../src/blob/index.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import { HOUR_MS, MINUTE_MS, type Process, START_NS } from './process.ts';

interface Stored {
  readonly bytes: Uint8Array;
  readonly putMs: number;
  readonly timestampNs: Nanoseconds;
}

/** Faults of the storage. Chances are per request. */
export interface Weather {
  readonly latencyMs: number;
  /** Some requests take this long. */
  readonly slowMs: number;
  readonly slow: number;
  readonly refused: number;
  /** The request takes effect, and its answer is lost. */
  readonly lost: number;
  /** The answer is lost, and the request takes effect later. */
  readonly late: number;
  /** A wrong listing: empty, truncated or old; see {@link Bucket.lie}. */
  readonly lies: number;
}

export type Kind = 'get' | 'metadata' | 'put' | 'delete' | 'list';

/** A window of virtual time in which the storage is away or full. */
export interface Window {
  readonly kind: 'away' | 'full';
  readonly fromMs: number;
  readonly untilMs: number;
}

/** The shortest time between a client's wrong listings. Their effects must be over by then. */
const LIE_EVERY_MS = HOUR_MS;
/** The greatest age of an old listing. */
const STALE_MS_MAX = 30 * MINUTE_MS;
/** An abandoned request takes effect within this time, or never. */
const LATE_MS_MAX = 5 * MINUTE_MS;

/** The prefix of a blob's name. */
const kindOf = (id: string): string => /^(x[a-z]|[pqs_])/.exec(id)?.[0] ?? id;

/** The blobs, and all operations on them. */
export class Bucket {
  readonly blobs = new Map<string, Stored>();
  readonly windows: Window[] = [];
  /** Puts and deletions that took effect. */
  writes = 0;
  weather: Weather;
  readonly count: (event: string) => void;
  readonly trace: (line: string) => void;
  readonly #time: VirtualTime;
  readonly #random: Random;
  /** Deleted blobs, for old listings. */
  readonly #gone: { id: string; stored: Stored; deletedMs: number }[] = [];
  #liedMs = -LIE_EVERY_MS;

  constructor(
    time: VirtualTime,
    random: Random,
    weather: Weather,
    tell: { count: (event: string) => void; trace: (line: string) => void },
  ) {
    this.#time = time;
    this.#random = random;
    this.weather = weather;
    this.count = tell.count;
    this.trace = tell.trace;
  }

  get time(): VirtualTime {
    return this.#time;
  }

  get random(): Random {
    return this.#random;
  }

  put(id: string, bytes: Uint8Array): void {
    const timestampNs = START_NS + BigInt(Math.floor(this.#time.nowMs)) * 1_000_000n;
    this.writes++;
    this.count(`put ${kindOf(id)}`);
    this.blobs.set(id, { bytes, putMs: this.#time.nowMs, timestampNs });
  }

  delete(id: string): void {
    const stored = this.blobs.get(id);
    if (!stored) return;
    this.writes++;
    this.blobs.delete(id);
    this.count(`deleted ${kindOf(id)}`);
    this.#gone.push({ id, stored, deletedMs: this.#time.nowMs });
    if (this.#gone.length > 1000) this.#gone.splice(0, 500);
  }

  list(prefix: string): BlobMetadata[] {
    const all: BlobMetadata[] = [];
    for (const [id, stored] of this.blobs)
      if (id.startsWith(prefix)) all.push(metadata(id, stored));
    return all;
  }

  /** The listing of some minutes ago. */
  #listBefore(prefix: string, ms: number): BlobMetadata[] {
    const then = this.#time.nowMs - ms;
    const all = this.list(prefix).filter(({ id }) => (this.blobs.get(id)?.putMs ?? 0) <= then);
    for (const { id, stored, deletedMs } of this.#gone) {
      const wasThere = stored.putMs <= then && deletedMs > then && !this.blobs.has(id);
      if (wasThere && id.startsWith(prefix)) all.push(metadata(id, stored));
    }
    return all;
  }

  /** Returns a wrong listing: a foreign page, an old listing, or a part. */
  lie(prefix: string): BlobMetadata[] | undefined {
    const isDue = this.#time.nowMs - this.#liedMs >= LIE_EVERY_MS;
    if (!isDue || !this.#random.chance(this.weather.lies)) return undefined;
    const all = this.list(prefix);
    if (all.length === 0) return undefined;
    this.#liedMs = this.#time.nowMs;
    this.count('listings that lied');
    switch (this.#random.below(3)) {
      case 0:
        return [];
      case 1:
        return all.slice(0, this.#random.below(all.length));
      default:
        return this.#listBefore(prefix, this.#random.between(0, STALE_MS_MAX));
    }
  }

  inWindow(kind: Window['kind']): boolean {
    const now = this.#time.nowMs;
    return this.windows.some((w) => w.kind === kind && w.fromMs <= now && now < w.untilMs);
  }
}

function metadata(id: string, { bytes, timestampNs }: Stored): BlobMetadata {
  return { id: id as BlobId, lengthBytes: bytes.length, timestampNs };
}

/** The bucket's client in one process. Without a process it works at once, without faults. */
export class BucketClient implements BlobStorage {
  readonly displayName = 'the simulated bucket';
  readonly hasObjectLock = false;
  readonly #bucket: Bucket;
  readonly #process: Process | undefined;

  constructor(bucket: Bucket, process?: Process) {
    this.#bucket = bucket;
    this.#process = process;
  }

  getBlob(id: BlobId, options: GetOptions = {}): Promise<Uint8Array> {
    return this.#request('get', id, () => {
      const { bytes } = this.#find(id);
      const { offset, lengthBytes } = options;
      if (offset === undefined && lengthBytes === undefined) return copyInto(bytes, options.into);
      const start = offset ?? 0;
      const length = lengthBytes ?? bytes.length - start;
      if (start < 0 || length < 0 || start + length > bytes.length) {
        throw new CodedError('INVALID_RANGE', `blob ${id} is shorter than ${start}+${length}`);
      }
      return copyInto(bytes.subarray(start, start + length), options.into);
    });
  }

  getMetadata(id: BlobId): Promise<BlobMetadata> {
    return this.#request('metadata', id, () => metadata(id, this.#find(id)));
  }

  putBlob(id: BlobId, data: readonly Uint8Array[], options: PutOptions = {}): Promise<void> {
    // The request sends the current bytes.
    const bytes = new Uint8Array(Buffer.concat(data));
    return this.#request('put', id, () => {
      if (options.doNotRecreate === true && this.#bucket.blobs.has(id)) {
        throw new CodedError('BLOB_EXISTS', `blob ${id} already exists`);
      }
      this.#bucket.put(id, bytes);
    });
  }

  deleteBlob(id: BlobId): Promise<void> {
    return this.#request('delete', id, () => {
      this.#bucket.delete(id);
    });
  }

  async *listBlobs(prefix: string): AsyncIterable<BlobMetadata> {
    if (!this.#process) {
      yield* this.#bucket.list(prefix);
      return;
    }
    const first = await this.#request('list', prefix, () => {
      const lie = this.#bucket.lie(prefix);
      if (lie) this.#process?.troubles.add('a listing that lied');
      return { lie, page: this.#bucket.list(prefix) };
    });
    if (first.lie) {
      this.#bucket.trace(
        `${this.#process.name}: list ${prefix} LIES: ${first.lie.length} of ${first.page.length}`,
      );
      yield* first.lie;
      return;
    }
    // Two pages: the second is read later.
    const half = Math.ceil(first.page.length / 2);
    if (half < 8) {
      yield* first.page;
      return;
    }
    const ids = new Set(first.page.slice(0, half).map(({ id }) => id));
    yield* first.page.slice(0, half);
    const second = await this.#request('list', prefix, () => this.#bucket.list(prefix));
    yield* second.filter(({ id }) => !ids.has(id));
  }

  signedUrl(): Promise<string> {
    throw new CodedError('UNSUPPORTED_URL', 'there are no URLs here');
  }

  async *listFolders(): AsyncIterable<string> {}

  extendRetention(): Promise<void> {
    throw new CodedError('UNSUPPORTED_PUT', 'there is no object lock here');
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return Promise.resolve();
  }

  #find(id: BlobId): Stored {
    const stored = this.#bucket.blobs.get(id);
    if (!stored) throw new BlobNotFoundError(id);
    return stored;
  }

  /** Sends a request and returns the answer. The request takes effect even if the sender dies. */
  async #request<T>(kind: Kind, id: string, effect: () => T): Promise<T> {
    const process = this.#process;
    if (!process) return effect();
    const bucket = this.#bucket;
    const { random, weather, time } = bucket;
    const what = `${kind} ${id}`;
    const isSlow = random.chance(weather.slow);
    const thereMs = random.between(0, isSlow ? weather.slowMs : weather.latencyMs);
    const backMs = random.between(0, weather.latencyMs);
    const refusal = this.#refusal(kind);
    const isWrite = kind === 'put' || kind === 'delete';
    const isLate = isWrite && random.chance(weather.late);
    const isLost = isWrite && random.chance(weather.lost);
    if (refusal || isLate || isLost) process.troubles.add(`a ${kind} that failed`);
    if (isLate) {
      bucket.count('late effects');
      time.after(thereMs + random.between(0, LATE_MS_MAX), () => {
        bucket.trace(`bucket: late ${what}`);
        attempt(effect);
      });
    }
    let result: { value: T } | { error: unknown } | undefined;
    if (!refusal && !isLate) {
      const landsAnyway = random.chance(0.5);
      time.after(thereMs, () => {
        if (process.isAlive || landsAnyway) result = attempt(effect);
      });
    }
    await process.wait(what, thereMs + backMs);
    if (refusal) {
      bucket.trace(`${process.name}: ${what}: ${refusal.code}`);
      throw refusal;
    }
    if (isLate || isLost) {
      bucket.count('lost answers');
      bucket.trace(`${process.name}: ${what}: ${isLate ? 'not yet done, ' : ''}answer lost`);
      throw new CodedError('STORAGE_STALLED', `no answer to ${what}`, { retry: 'backoff' });
    }
    if (!result) throw new Error(`${what} was not done in time`);
    if (isWrite || kind === 'list') bucket.trace(`${process.name}: ${what}`);
    if ('error' in result) throw result.error;
    return result.value;
  }

  #refusal(kind: Kind): CodedError | undefined {
    const bucket = this.#bucket;
    if (bucket.inWindow('away')) {
      bucket.count('requests while away');
      return new CodedError('STORAGE_UNREACHABLE', 'nobody there', { retry: 'backoff' });
    }
    if (kind === 'put' && bucket.inWindow('full')) {
      bucket.count('puts while full');
      return new CodedError('STORAGE_FULL', 'no space left');
    }
    if (!bucket.random.chance(bucket.weather.refused)) return undefined;
    bucket.count('refused requests');
    const code = bucket.random.chance(0.5) ? 'STORAGE_THROTTLED' : 'STORAGE_FAILED';
    return new CodedError(code, 'not now', { retry: 'backoff' });
  }
}

function attempt<T>(effect: () => T): { value: T } | { error: unknown } {
  try {
    return { value: effect() };
  } catch (error) {
    return { error };
  }
}

function copyInto(bytes: Uint8Array, into: Uint8Array | undefined): Uint8Array {
  if (!into) return Uint8Array.from(bytes);
  into.set(bytes);
  return into.subarray(0, bytes.length);
}
