import { CodedError } from '../../../src/base/index.ts';
import { type Body, blobId, BlobNotFoundError, type Bucket } from '../../../src/blob/index.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';

/** The shared storage of all servers, and whether it can be reached. */
export class SharedBucket {
  readonly objects = new Map<string, Buffer>();
  isAway = false;
  /** Called after each change. */
  onChange: (key: string, by: Life) => void = () => undefined;

  /** All keys that were put, and keys that were put twice. */
  readonly #put = new Set<string>();
  readonly putTwice = new Set<string>();

  put(key: string, bytes: Buffer, by: Life): void {
    if (this.#put.has(key)) this.putTwice.add(key);
    this.#put.add(key);
    this.objects.set(key, bytes);
    this.onChange(key, by);
  }

  delete(key: string, by: Life): void {
    if (this.objects.delete(key)) this.onChange(key, by);
  }

  keys(prefix: string): string[] {
    return [...this.objects.keys()].filter((key) => key.startsWith(prefix)).sort();
  }
}

/** A process, for its bucket and the API server. */
export interface Life {
  readonly isDead: boolean;
  /** How long the process is suspended. */
  readonly frozenMs: number;
  readonly latencyMs: number;
  /** Chance that a request is refused, or that its answer is lost. */
  readonly trouble: number;
  /** Called before a request and after its effect. The process may be killed there. */
  turn(what: string): void;
}

type Options =
  | { readonly signal?: AbortSignal | undefined; readonly ifAbsent?: boolean | undefined }
  | undefined;

/** The bucket's client in one process. A put may arrive after the process dies or gives up. */
export class ProcessBucket implements Bucket {
  readonly displayName = 'simulated';
  readonly #shared: SharedBucket;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #life: Life;

  constructor(shared: SharedBucket, time: VirtualTime, random: Random, life: Life) {
    this.#shared = shared;
    this.#time = time;
    this.#random = random;
    this.#life = life;
  }

  async put(key: string, body: Body, options?: Options): Promise<void> {
    const pieces: Uint8Array[] = [];
    for await (const piece of body) pieces.push(Buffer.from(piece));
    const bytes = Buffer.concat(pieces);
    await this.#ask(`put ${key}`, options, () => {
      if (options?.ifAbsent === true && this.#shared.objects.has(key)) {
        throw new CodedError('BLOB_EXISTS', `${key} is there`);
      }
      this.#shared.put(key, bytes, this.#life);
    });
  }

  async *get(key: string, options?: Options): AsyncIterable<Uint8Array> {
    yield await this.#ask(`get ${key}`, options, () => {
      const bytes = this.#shared.objects.get(key);
      if (!bytes) throw new BlobNotFoundError(blobId(key));
      return Buffer.from(bytes);
    });
  }

  has(key: string, options?: Options): Promise<boolean> {
    return this.#ask(`look for ${key}`, options, () => this.#shared.objects.has(key));
  }

  delete(key: string, options?: Options): Promise<void> {
    return this.#ask(`delete ${key}`, options, () => {
      this.#shared.delete(key, this.#life);
    });
  }

  async *list(prefix: string, options?: Options): AsyncIterable<string> {
    yield* await this.#ask(`list ${prefix}`, options, () => this.#shared.keys(prefix));
  }

  async *listFolders(prefix: string, options?: Options): AsyncIterable<string> {
    const keys = await Array.fromAsync(this.list(prefix, options));
    const folders = keys.flatMap((key) => {
      const [folder = '', ...rest] = key.slice(prefix.length).split('/');
      return rest.length > 0 ? [folder] : [];
    });
    yield* new Set(folders);
  }

  signedUrl(): Promise<never> {
    return Promise.reject(new CodedError('UNSUPPORTED_URL', 'there are no URLs'));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #ask<T>(what: string, options: Options, effect: () => T): Promise<T> {
    const life = this.#life;
    const signal = options?.signal;
    if (signal?.aborted === true) return Promise.reject(signal.reason as Error);
    life.turn(what);
    const isPut = what.startsWith('put ');
    // A sent put, which arrives even if its sender dies.
    const arrivesAnyway = isPut && this.#random.chance(0.5);
    const isRefused = this.#shared.isAway || this.#random.chance(life.trouble);
    const isLost = this.#random.chance(life.trouble);
    return new Promise<T>((resolve, reject) => {
      let isOver = false;
      const fail = (error: Error): void => {
        isOver = true;
        signal?.removeEventListener('abort', aborted);
        if (!life.isDead) reject(error);
      };
      const aborted = (): void => {
        fail(signal?.reason as Error);
      };
      signal?.addEventListener('abort', aborted, { once: true });
      const ms = life.frozenMs + this.#random.between(1, life.latencyMs);
      this.#time.after(ms, () => {
        if ((life.isDead || isOver) && !arrivesAnyway) return;
        if (isRefused) {
          fail(away());
          return;
        }
        let result: T;
        try {
          result = effect();
        } catch (error) {
          fail(error as Error);
          return;
        }
        if (life.isDead || isOver) return;
        life.turn(`${what}: done`);
        this.#time.after(life.frozenMs + this.#random.between(1, life.latencyMs), () => {
          if (life.isDead || isOver) return;
          if (isLost) {
            fail(away());
            return;
          }
          signal?.removeEventListener('abort', aborted);
          resolve(result);
        });
      });
    });
  }
}

const away = (): CodedError =>
  new CodedError('BLOB_UNAVAILABLE', 'the bucket is away', { retry: 'backoff' });
