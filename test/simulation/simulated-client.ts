import type { Clock } from '../../src/base/index.ts';
import { mergePatch } from '../../src/dev/api-server/patches.ts';
import { ApiError } from '../../src/dev/api-server/api-error.ts';
import { copyJson, type Store, type Stored } from '../../src/dev/api-server/store.ts';
import { kubeError, unreachable } from '../../src/kube/client/errors.ts';
import type {
  CallOptions,
  DeleteOptions,
  KubeClient,
  ListOptions,
  ObjectRef,
  Page,
  PageOptions,
  WatchEvent,
  WatchOptions,
} from '../../src/kube/client/client.ts';
import { type KubeObject, type NewObject, PODS, type Resource } from '../../src/kube/index.ts';
import type { Random, VirtualTime } from './virtual-time.ts';

/** How the API server treats its clients. Probabilities per request or event. */
export interface Weather {
  /** Refused without an effect. */
  refused: number;
  /** Refused without an effect, with a Retry-After. */
  throttled?: number;
  /** Takes effect, and the answer is lost. */
  lost: number;
  /** A watch ends at an event. */
  cut: number;
  latencyMs: number;
  watchLagMs: number;
  /** Reads and watches work, and writes fail: etcd's disk quota is used up. */
  isFull?: boolean;
  /** How long the client is suspended. Its node reports no problem. */
  frozenMs?: number;
}

/**
 * Weather of a course with servers: up to one request of ten fails in each way. The same numbers of
 * `random` make the same weather.
 */
export const roughWeather = (random: Random): Weather => ({
  refused: random.between(0, 0.1),
  lost: random.between(0, 0.1),
  cut: random.between(0, 0.1),
  latencyMs: random.chance(0.4) ? 900 : 30,
  watchLagMs: random.chance(0.4) ? 5000 : 100,
});

/** The client of one agent: the embedded API server's store, through weather. */
export class SimulatedClient {
  readonly clock: Clock;
  readonly server = 'simulation';
  readonly #store: Store;
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #weather: () => Weather;
  readonly #onRequest: ((what: string, error?: ApiError) => void) | undefined;
  #isDead = false;

  /** `onRequest` is called for every request, and again for each refused one. */
  constructor(
    store: Store,
    time: VirtualTime,
    clock: Clock,
    random: Random,
    weather: () => Weather,
    onRequest?: (what: string, error?: ApiError) => void,
  ) {
    this.#store = store;
    this.#time = time;
    this.clock = clock;
    this.#random = random;
    this.#weather = weather;
    this.#onRequest = onRequest;
  }

  get asClient(): KubeClient {
    return this as unknown as KubeClient;
  }

  /** Kills the process: its open requests are not sent, and its promises stay pending. */
  kill(): void {
    this.#isDead = true;
  }

  get<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    o: CallOptions = {},
  ): Promise<T> {
    const read = (): Stored => copyJson(this.#store.get(resource, ref.namespace, ref.name));
    return this.call(`get ${resource.plural}`, read, o.signal) as Promise<unknown> as Promise<T>;
  }

  async find<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: CallOptions = {},
  ): Promise<T | undefined> {
    try {
      return await this.get(resource, ref, options);
    } catch (error) {
      if ((error as { code?: string }).code === 'KUBE_NOT_FOUND') return undefined;
      throw error;
    }
  }

  async list<T extends KubeObject>(resource: Resource<T>, options: ListOptions = {}): Promise<T[]> {
    return (await this.listPage(resource, options)).items;
  }

  listPage<T extends KubeObject>(resource: Resource<T>, options: PageOptions): Promise<Page<T>> {
    const read = (): Page<T> => ({
      items: this.#store.list(resource, options) as unknown as T[],
      resourceVersion: String(this.#store.version),
      continue: undefined,
    });
    return this.call(`list ${resource.plural}`, read, options.signal);
  }

  create<T extends KubeObject>(
    resource: Resource<T>,
    object: NewObject<T>,
    options: CallOptions = {},
  ): Promise<T> {
    const { namespace } = object.metadata;
    const write = (): Stored =>
      copyJson(this.#store.create(resource, namespace, object as unknown as Stored));
    const done = this.call(`create ${resource.plural}`, write, options.signal);
    return done as Promise<unknown> as Promise<T>;
  }

  replace<T extends KubeObject>(
    resource: Resource<T>,
    object: T,
    options: CallOptions = {},
  ): Promise<T> {
    const sent = copyJson(object) as unknown as Stored;
    const write = (): Stored => copyJson(this.#store.update(resource, sent));
    const done = this.call(`update ${resource.plural}`, write, options.signal);
    return done as Promise<unknown> as Promise<T>;
  }

  patch<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    patch: object,
    options: CallOptions & { subresource?: string } = {},
  ): Promise<T> {
    const write = (): Stored => {
      const before = this.#store.get(resource, ref.namespace, ref.name);
      const after = mergePatch(before, patch) as Stored;
      const part = options.subresource === 'status' ? 'status' : undefined;
      return copyJson(this.#store.update(resource, after, part));
    };
    const done = this.call(`patch ${resource.plural}`, write, options.signal);
    return done as Promise<unknown> as Promise<T>;
  }

  async delete<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options: DeleteOptions = {},
  ): Promise<boolean> {
    const { namespace, name } = ref;
    try {
      const remove = (): unknown => {
        const object = this.#store.get(resource, namespace, name);
        const { resourceVersion = object.metadata.resourceVersion } = options;
        if (resourceVersion !== object.metadata.resourceVersion) {
          throw new ApiError(409, 'Conflict', `${name} has another version`);
        }
        // Terminating pods have a finalizer here, in place of their kubelet's last message.
        if (options.gracePeriodSeconds === 0 && object.metadata.finalizers) {
          if (options.uid !== undefined && object.metadata.uid !== options.uid) return undefined;
          const { metadata } = copyJson(object);
          delete metadata.finalizers;
          return this.#store.update(resource, { ...object, metadata });
        }
        return this.#store.delete(resource, namespace, name, options.uid);
      };
      await this.call(`delete ${resource.plural}`, remove, options.signal);
      return true;
    } catch (error) {
      const { code } = error as { code?: string };
      if (code === 'KUBE_NOT_FOUND') return false;
      if (options.uid !== undefined && code === 'KUBE_CONFLICT') return false;
      throw error;
    }
  }

  async *watch<T extends KubeObject>(
    resource: Resource<T>,
    options: WatchOptions = {},
  ): AsyncGenerator<WatchEvent<T>> {
    const { signal, resourceVersion, timeoutSeconds = 300 } = options;
    const what = `watch ${resource.plural}`;
    await this.call(what, () => undefined, signal);
    options.onActivity?.();
    const events: WatchEvent<T>[] = [];
    let wake = Promise.withResolvers<undefined>();
    let end: 'open' | 'cut' | 'over' = 'open';
    let lastMs = 0;
    const finish = (how: 'cut' | 'over'): void => {
      if (end === 'open') end = how;
      wake.resolve(undefined);
    };
    const since = resourceVersion === undefined ? undefined : Number(resourceVersion);
    const stop = this.#watchStore(what, () =>
      this.#store.watch(resource, options, since, (type, object) => {
        const { watchLagMs, cut, frozenMs = 0 } = this.#weather();
        const isCut = this.#random.chance(cut);
        // Late, but in order.
        lastMs = Math.max(
          lastMs,
          this.#time.nowMs + frozenMs + this.#random.between(0, watchLagMs),
        );
        this.#time.after(lastMs - this.#time.nowMs, () => {
          if (end !== 'open') return;
          if (isCut) {
            finish('cut');
            return;
          }
          events.push({ type, object: object as unknown as T });
          wake.resolve(undefined);
        });
      }),
    );
    if (options.sendInitialEvents === true) {
      const resourceVersion = String(this.#store.version);
      const annotations = { 'k8s.io/initial-events-end': 'true' };
      this.#time.after(lastMs - this.#time.nowMs, () => {
        const object = { metadata: { resourceVersion, annotations } } as unknown as KubeObject;
        events.push({ type: 'BOOKMARK', object });
        wake.resolve(undefined);
      });
    }
    const over = this.#time.after(timeoutSeconds * 1000, () => {
      finish('over');
    });
    const aborted = (): void => {
      finish('over');
    };
    signal?.addEventListener('abort', aborted, { once: true });
    try {
      for (;;) {
        signal?.throwIfAborted();
        const event = events.shift();
        if (event && !this.#isDead) {
          options.onActivity?.();
          yield event;
          continue;
        }
        if (end !== 'open') break;
        wake = Promise.withResolvers<undefined>();
        await wake.promise;
      }
    } finally {
      stop();
      this.#time.clear(over);
      signal?.removeEventListener('abort', aborted);
    }
    signal?.throwIfAborted();
    if (end === 'cut') throw unreachable(what, new Error('cut'));
  }

  #watchStore<R>(what: string, watch: () => R): R {
    try {
      return watch();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      throw kubeError(what, error.code, { reason: error.reason, message: error.message });
    }
  }

  /** The log of an existing pod. */
  podLog({ namespace = '', name }: ObjectRef): Promise<string> {
    const read = (): string => `by pod ${this.#store.get(PODS, namespace, name).metadata.uid}`;
    return this.call(`get the log of pod ${name}`, read, undefined);
  }

  raw(): Promise<unknown> {
    return Promise.reject(new Error('not in the simulation'));
  }

  close(): void {
    this.kill();
  }

  protected async call<R>(
    what: string,
    effect: () => R,
    signal: AbortSignal | undefined,
  ): Promise<R> {
    signal?.throwIfAborted();
    this.#onRequest?.(what);
    const { latencyMs, refused, throttled, lost, isFull } = this.#weather();
    await this.#pass(latencyMs, signal);
    if (this.#random.chance(refused)) throw unreachable(what, new Error('refused'));
    if (throttled !== undefined && this.#random.chance(throttled)) {
      throw kubeError(what, 429, { message: 'too many requests' }, 1);
    }
    if (isFull === true && !/^(get|list|watch)/.test(what)) {
      throw kubeError(what, 500, { message: 'etcdserver: mvcc: database space exceeded' });
    }
    let result: R;
    try {
      result = effect();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#onRequest?.(what, error);
      await this.#pass(latencyMs, signal);
      throw kubeError(what, error.code, { reason: error.reason, message: error.message });
    }
    await this.#pass(latencyMs, signal);
    if (this.#random.chance(lost)) throw unreachable(what, new Error('lost'));
    return result;
  }

  /** Dead processes hear nothing any more: their promises stay pending. */
  #pass(latencyMs: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve, reject) => {
      const aborted = (): void => {
        this.#time.clear(timer);
        if (!this.#isDead) reject(signal?.reason as Error);
      };
      const { frozenMs = 0 } = this.#weather();
      const timer = this.#time.after(frozenMs + this.#random.between(0, latencyMs), () => {
        signal?.removeEventListener('abort', aborted);
        if (!this.#isDead) resolve();
      });
      signal?.addEventListener('abort', aborted, { once: true });
    });
  }
}
