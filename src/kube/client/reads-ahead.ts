import { createLimiter, untilAborted } from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import type { CallOptions, KubeClient, ObjectRef } from './client.ts';

/**
 * Objects that are held, or being asked for. Our choice: an object has a few KiB, and never more
 * than 1.5 MiB.
 */
const HELD_MAX = 64;
/**
 * So old an answer may be when it is used, from before it was asked for. Our choice: less than a
 * person needs to notice.
 */
const AGE_MS_MAX = 5000;
/** Our choice: what somebody waits for already must get through. */
const AT_ONCE = 8;
const WRITES: readonly unknown[] = ['patch', 'replace', 'delete'];

/** The object itself, or which one. */
type WrittenTo = ObjectRef | KubeObject;

interface Held {
  readonly sentMs: number;
  /** Undefined where there was no such object, or no answer: whoever needs it asks again. */
  readonly object: Promise<KubeObject | undefined>;
}

/**
 * Single objects that are asked for before it is their turn, many at a time.
 * {@link ReadsAhead.client} answers `get` and `find` from them, each once, and as if it had asked
 * just then but for an age of five seconds at most: what was not there, could not be read, or has
 * become too old is asked for again. Nobody is given an older object than one that was written, or
 * asked for, through the same client before.
 */
export class ReadsAhead {
  /** Everything else of it is the client itself. */
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

  /**
   * Asks for an object that will soon be needed, read in this way. Never fails; does nothing where
   * so many are held already.
   */
  begin(
    resource: Resource<KubeObject>,
    ref: ObjectRef,
    { isExact }: Pick<CallOptions, 'isExact'> = {},
  ): void {
    const key = keyOf(resource, ref, isExact);
    this.#dropOld();
    if (this.#held.has(key) || this.#held.size >= HELD_MAX) return;
    // One that waits for its turn is no older than one that is sent at once.
    const signal = AbortSignal.timeout(AGE_MS_MAX);
    const object = this.#limiter
      .run(() => this.#asked.find(resource, ref, { signal, ...(isExact && { isExact }) }))
      .catch(() => undefined);
    this.#held.set(key, { sentMs: this.#nowMs(), object });
  }

  /** Undefined where it is to be asked for. Throws the reason of the signal. */
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

  /** However it is read: what is held of it is older than what somebody knows. */
  #forget(resource: Resource<KubeObject>, ref: ObjectRef): void {
    for (const isExact of [false, true]) this.#held.delete(keyOf(resource, ref, isExact));
  }

  #isFresh({ sentMs }: Held): boolean {
    return this.#nowMs() - sentMs <= AGE_MS_MAX;
  }

  /** What nobody has come for. They are in the order in which they were asked for. */
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
              // Also after a failure, behind which it may have been written.
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
