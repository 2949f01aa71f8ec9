import { setTimeout as sleep } from 'node:timers/promises';
import {
  backoffMs,
  CodedError,
  isCode,
  type Logger,
  messageOf,
  retryOf,
} from '../../base/index.ts';
import type { KubeObject } from '../api/core.ts';
import type { Resource } from '../api/resources.ts';
import { isUnauthorized } from '../client/error-meaning.ts';
import {
  endsInitialEvents,
  type KubeClient,
  type ListOptions,
  type ObjectRef,
  type WatchEvent,
} from '../client/client.ts';
import { withOwnSignal } from './own-signal.ts';

export interface CacheOptions<T extends KubeObject> {
  readonly client: KubeClient;
  readonly resource: Resource<T>;
  readonly scope?: Omit<ListOptions, 'signal'>;
  readonly logger: Logger;
  /** Reduces an object to the part to keep. */
  readonly trim?: (object: T) => T;
}

/** `before` is undefined for a new object, `after` for a deleted one. */
export type Listener<T> = (after: T | undefined, before: T | undefined) => void;

/** The server ends a watch after up to twice this time, at random to spread the load. */
const WATCH_SECONDS = 300;
/** Bookmarks arrive about every minute, so a watch that is silent for this long hangs. */
const SILENCE_MS = 150_000;
const BACKOFF_FIRST_MS = 250;
const BACKOFF_MAX_MS = 8000;
/** A server that is silent for this long during the initial list will not finish it. */
const INITIAL_SILENCE_MS = 30_000;
const STREAM_FAILURES_MAX = 3;
/** After a shorter gap in its watch, an agent still learns of changes as early as other agents. */
const AWAY_MS = 2000;
/** A watch that lasted this long counts as a success, even if it broke. */
const LIVED_MS = 5000;
/** A shorter watch without events is a failure. client-go: tools/cache/reflector.go. */
const SHORT_MS = 1000;

export const keyOf = ({ namespace, name }: ObjectRef): string =>
  namespace === undefined ? name : `${namespace}/${name}`;

export function refOf(key: string): { namespace?: string; name: string } {
  const slash = key.indexOf('/');
  if (slash < 0) return { name: key };
  return { namespace: key.slice(0, slash), name: key.slice(slash + 1) };
}

/**
 * The objects of one kind, as the API server last reported them. Lists, then watches, and lists
 * again if the watch cannot continue. If the server supports it, the list is the first part of the
 * watch. The server then sends it from memory, one object at a time, and never older than the
 * request. Drops managedFields. Objects may be stale, so writes are checked by their
 * resourceVersion.
 */
export class Cache<T extends KubeObject> {
  readonly resource: Resource<T>;
  readonly #options: CacheOptions<T>;
  readonly #objects = new Map<string, T>();
  readonly #listeners: Listener<T>[] = [];
  #resourceVersion: string | undefined;
  #synced = Promise.withResolvers<undefined>();
  #isSynced = false;
  #lastContactMs = -Infinity;
  /** Time of the first contact with the server, or of the first contact after an outage. */
  #backAtMs: number | undefined;
  #awaySinceMs: number | undefined = -Infinity;
  #failure: string | undefined;
  #attempts = 0;
  /** Whether lists are requested as the first part of a watch. */
  #streams = true;
  #streamFailures = 0;

  constructor(options: CacheOptions<T>) {
    this.resource = options.resource;
    this.#options = options;
  }

  /** Calls the listener for every change, and at once for every known object. */
  onChange(listener: Listener<T>): void {
    this.#listeners.push(listener);
    for (const object of this.#objects.values()) listener(object, undefined);
  }

  get(ref: ObjectRef): T | undefined {
    return this.#objects.get(keyOf(ref));
  }

  list(): T[] {
    return [...this.#objects.values()];
  }

  /** Resolves after the first list. */
  get synced(): Promise<undefined> {
    return this.#synced.promise;
  }

  get isSynced(): boolean {
    return this.#isSynced;
  }

  /** Why the server cannot be reached; undefined if it can. */
  get failure(): string | undefined {
    return this.#failure;
  }

  /** Milliseconds since the last contact with the server. */
  get silentMs(): number {
    return performance.now() - this.#lastContactMs;
  }

  /** Whether the watch has been broken for a while. */
  get isAway(): boolean {
    return this.#awaySinceMs !== undefined && performance.now() - this.#awaySinceMs > AWAY_MS;
  }

  /** Milliseconds since the first contact, or since the end of an outage. */
  get backMs(): number {
    return this.#backAtMs === undefined ? 0 : performance.now() - this.#backAtMs;
  }

  /** Runs until the signal aborts. Retries failures, and reports them in {@link failure}. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const startMs = performance.now();
      try {
        const isStreamed = this.#resourceVersion === undefined && this.#streams;
        if (this.#resourceVersion === undefined && !isStreamed) await this.#list(signal);
        if (!isStreamed) this.#failure = undefined;
        await this.#watch(signal, isStreamed);
        this.#attempts = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (isCode(error, 'LIST_NOT_STREAMED')) {
          // List in pages, now and from now on.
          this.#streams = false;
          continue;
        }
        if (isCode(error, 'KUBE_GONE')) {
          // The version is too old to resume. This is no failure, but retry with a pause.
          this.#resourceVersion = undefined;
        } else {
          this.#failure = messageOf(error);
        }
        this.#awaySinceMs ??= performance.now();
        if (performance.now() - startMs > LIVED_MS) this.#attempts = 0;
        await this.#pause(error, signal);
      }
    }
  }

  async #pause(error: unknown, signal: AbortSignal): Promise<void> {
    const { logger, resource } = this.#options;
    const limits = { firstMs: BACKOFF_FIRST_MS, maxMs: BACKOFF_MAX_MS, jitter: 0.5 };
    const delayMs = backoffMs(++this.#attempts, limits);
    const log = this.#attempts > 3 ? logger.warn.bind(logger) : logger.debug.bind(logger);
    log({ resource: resource.plural, error: messageOf(error) }, 'watch ended; starting it again');
    await sleep(delayMs, undefined, { signal }).catch(() => undefined);
  }

  async #list(signal: AbortSignal): Promise<void> {
    const { client, resource, scope } = this.#options;
    const found = new Map<string, T>();
    let version = '';
    let next: string | undefined;
    do {
      const page = await client.listPage(resource, {
        ...scope,
        signal,
        limit: 500,
        continue: next,
      });
      for (const object of page.items) found.set(keyOf(object.metadata), this.#kept(object));
      version = page.resourceVersion;
      next = page.continue;
    } while (next !== undefined);
    this.#heard();
    this.#put(found, version);
  }

  /** Replaces all objects. */
  #put(found: ReadonlyMap<string, T>, version: string): void {
    for (const [key, before] of this.#objects) {
      if (found.has(key)) continue;
      this.#objects.delete(key);
      this.#tell(undefined, before);
    }
    for (const object of found.values()) this.#set(object);
    this.#resourceVersion = version;
    this.#isSynced = true;
    this.#synced.resolve(undefined);
  }

  /** `isInitial`: the request starts with the existing objects. */
  #watch(signal: AbortSignal, isInitial: boolean): Promise<void> {
    return withOwnSignal(signal, async (own) => {
      const startMs = performance.now();
      let lastMs = startMs;
      let isOpened = false;
      let isEmpty = true;
      let initial = isInitial ? new Map<string, T>() : undefined;
      const timer = setInterval(() => {
        const silentMs = performance.now() - lastMs;
        if (initial && silentMs > INITIAL_SILENCE_MS) own.abort(notStreamed());
        if (silentMs > SILENCE_MS) own.abort(new Error('the watch was silent'));
      }, SILENCE_MS / 10);
      timer.unref();
      try {
        const onActivity = (): void => {
          lastMs = performance.now();
          isOpened = true;
          this.#heard();
        };
        for await (const event of this.#open(own.signal, onActivity, isInitial)) {
          isEmpty = false;
          if (!initial) this.#see(event);
          else if (this.#gather(initial, event)) initial = undefined;
        }
      } catch (error) {
        if (!initial) throw error;
        throw this.#streamFailure(error, isOpened);
      } finally {
        clearInterval(timer);
      }
      if (initial) throw notStreamed();
      // Behind some proxies each watch ends at once. Without a pause, requests would flood.
      if (isEmpty && performance.now() - startMs < SHORT_MS) {
        throw new Error('the watch ended at once');
      }
    });
  }

  /** Returns true for the event that ends the initial list. */
  #gather(initial: Map<string, T>, event: WatchEvent<T>): boolean {
    if (event.type === 'BOOKMARK') {
      // Servers without this feature send other bookmarks.
      if (!endsInitialEvents(event)) throw notStreamed();
      this.#streamFailures = 0;
      this.#failure = undefined;
      this.#put(initial, event.object.metadata.resourceVersion);
      return true;
    }
    const key = keyOf(event.object.metadata);
    if (event.type === 'DELETED') initial.delete(key);
    else initial.set(key, this.#kept(event.object));
    return false;
  }

  /** Falls back to pages if the streamed list is refused, or breaks repeatedly. */
  #streamFailure(error: unknown, isOpened: boolean): unknown {
    const isRefused = retryOf(error) === 'never' && !isUnauthorized(error);
    if (isOpened) this.#streamFailures++;
    const isHopeless = isRefused || this.#streamFailures >= STREAM_FAILURES_MAX;
    return isHopeless ? notStreamed(error) : error;
  }

  #open(
    signal: AbortSignal,
    onActivity: () => void,
    sendInitialEvents: boolean,
  ): AsyncIterable<WatchEvent<T>> {
    const { client, resource, scope } = this.#options;
    return client.watch(resource, {
      ...scope,
      signal,
      resourceVersion: this.#resourceVersion,
      sendInitialEvents,
      timeoutSeconds: Math.round(WATCH_SECONDS * (1 + Math.random())),
      onActivity,
    });
  }

  #see(event: WatchEvent<T>): void {
    this.#resourceVersion = event.object.metadata.resourceVersion;
    if (event.type === 'BOOKMARK') return;
    if (event.type === 'DELETED') this.#remove(event.object);
    else this.#set(this.#kept(event.object));
  }

  #kept(object: T): T {
    // managedFields are a third of an object, and no code here reads them.
    delete object.metadata.managedFields;
    return this.#options.trim?.(object) ?? object;
  }

  #heard(): void {
    const nowMs = performance.now();
    this.#lastContactMs = nowMs;
    if (this.#awaySinceMs === undefined) return;
    if (nowMs - this.#awaySinceMs > AWAY_MS) this.#backAtMs = nowMs;
    this.#awaySinceMs = undefined;
  }

  #set(object: T): void {
    const key = keyOf(object.metadata);
    const before = this.#objects.get(key);
    if (before?.metadata.resourceVersion === object.metadata.resourceVersion) return;
    this.#objects.set(key, object);
    this.#tell(object, before);
  }

  #remove(object: T): void {
    const key = keyOf(object.metadata);
    const before = this.#objects.get(key);
    // Listeners that count must not see the deletion of an unknown object.
    if (before && this.#objects.delete(key)) this.#tell(undefined, before);
  }

  #tell(after: T | undefined, before: T | undefined): void {
    for (const listener of this.#listeners) listener(after, before);
  }
}

const notStreamed = (cause?: unknown): CodedError =>
  new CodedError('LIST_NOT_STREAMED', 'the server does not stream lists', { cause });
