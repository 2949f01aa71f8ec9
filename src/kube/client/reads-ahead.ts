import { createLimiter, untilAborted } from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import type { CallOptions, KubeClient, ObjectRef } from './client.ts';

/** Held and pending objects. Our choice: most have a few KiB, and none over 1.5 MiB. */
const HELD_MAX = 64;
/** Maximum age at use, counted from the request. Our choice: too short to be noticed. */
const AGE_MS_MAX = 5000;
/** Our choice: leaves room for requests that callers wait for. */
const AT_ONCE = 8;
const WRITES: readonly unknown[] = ['patch', 'replace', 'delete'];

/** The object itself, or its reference. */
type WrittenTo = ObjectRef | KubeObject;

interface Held {
  readonly sentMs: number;
  /** Undefined if there was no such object, or no answer. The caller then reads it again. */
  readonly object: Promise<KubeObject | undefined>;
}

/**
 * Prefetches single objects, many at a time. {@link ReadsAhead.client} answers `get` and `find`
 * from them, each once, at most five seconds old. Missing, failed and old answers are read again.
 * No answer is older than a write or read of the same object through this client.
 */
export class ReadsAhead {
  /** The client, with prefetched reads. */
  readonly client: KubeClient;
  readonly #asked: KubeClient;
  readonly #held = new Map<string, Held>();
  readonly #limiter = createLimiter(AT_ONCE);
  readonly #nowMs: () => number;

  constructor(client: KubeClient, { nowMs = () => performance.now() } = {}) {
    this.#asked = client;
    this.#nowMs = nowMs;
    this.client = this.#answering();
  }

  /** Prefetches an object for a read with these options. Never fails, but may do nothing. */
  begin(
    resource: Resource<KubeObject>,
    ref: ObjectRef,
    { isExact }: Pick<CallOptions, 'isExact'> = {},
  ): void {
    const key = keyOf(resource, ref, isExact);
    this.#dropOld();
    if (this.#held.has(key) || this.#held.size >= HELD_MAX) return;
    // The age counts from now, also for a read that waits for its turn.
    const signal = AbortSignal.timeout(AGE_MS_MAX);
    const object = this.#limiter
      .run(() => this.#asked.find(resource, ref, { signal, ...(isExact && { isExact }) }))
      .catch(() => undefined);
    this.#held.set(key, { sentMs: this.#nowMs(), object });
  }

  /** Undefined if the object must be read. Throws the reason of the signal. */
  async #take(
    resource: Resource<KubeObject>,
    ref: ObjectRef,
    { isExact, signal }: CallOptions = {},
  ): Promise<KubeObject | undefined> {
    const key = keyOf(resource, ref, isExact);
    const held = this.#held.get(key);
    if (!held) return undefined;
    this.#held.delete(key);
    if (signal) await untilAborted(signal, held.object);
    signal?.throwIfAborted();
    const object = await held.object;
    return this.#isFresh(held) ? object : undefined;
  }

  /** Drops both forms: each is older than the caller's knowledge. */
  #forget(resource: Resource<KubeObject>, ref: ObjectRef): void {
    for (const isExact of [false, true]) this.#held.delete(keyOf(resource, ref, isExact));
  }

  #isFresh({ sentMs }: Held): boolean {
    return this.#nowMs() - sentMs <= AGE_MS_MAX;
  }

  /** Drops unused answers. The map is in the order of the requests. */
  #dropOld(): void {
    for (const [key, held] of this.#held) {
      if (this.#isFresh(held)) return;
      this.#held.delete(key);
    }
  }

  #answering(): KubeClient {
    const answer =
      (name: 'get' | 'find') =>
      async (
        resource: Resource<KubeObject>,
        ref: ObjectRef,
        options?: CallOptions,
      ): Promise<KubeObject | undefined> => {
        const ahead = await this.#take(resource, ref, options);
        if (ahead) return ahead;
        const object = await this.#asked[name](resource, ref, options);
        this.#forget(resource, ref);
        return object;
      };
    const calls = { get: answer('get'), find: answer('find') };
    return new Proxy(this.#asked, {
      get: (target, key) => {
        if (key === 'get' || key === 'find') return calls[key];
        const value: unknown = Reflect.get(target, key, target);
        if (WRITES.includes(key) && typeof value === 'function') {
          return async (resource: Resource<KubeObject>, what: WrittenTo, ...rest: unknown[]) => {
            try {
              return (await Reflect.apply(value, target, [resource, what, ...rest])) as unknown;
            } finally {
              // A failed write may have been executed.
              this.#forget(resource, 'metadata' in what ? what.metadata : what);
            }
          };
        }
        return typeof value === 'function' ? (value.bind(target) as unknown) : value;
      },
    });
  }
}

const keyOf = (
  { group, version, plural }: Resource<KubeObject>,
  { namespace = '', name }: ObjectRef,
  isExact = false,
): string => JSON.stringify([group, version, plural, namespace, name, isExact]);
