import { type Logger, untilAborted } from '../base/index.ts';
import { Cache, type KubeClient, type KubeObject, type Resource } from '../kube/index.ts';

export interface WatchPlace {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
}

export interface SharedObjectsOptions<T extends KubeObject> extends WatchPlace {
  readonly resource: Resource<T>;
  /** Returns the part of an object to keep in memory. */
  readonly trim: (object: T) => T;
}

export interface WatchedObjects<T extends KubeObject> extends AsyncDisposable {
  readonly cache: Pick<Cache<T>, 'get' | 'list' | 'onChange' | 'failure'>;
}

/**
 * A watch of a kind, shared by controllers. The first user opens it, and the last one closes it.
 */
export class SharedObjects<T extends KubeObject> {
  readonly #options: SharedObjectsOptions<T>;
  #use:
    | {
        readonly cache: Cache<T>;
        readonly abort: AbortController;
        readonly running: Promise<void>;
        users: number;
        isSynced: boolean;
      }
    | undefined;

  constructor(options: SharedObjectsOptions<T>) {
    this.#options = options;
  }

  /** Why the watch has no current data. */
  get failure(): string | undefined {
    return this.#use?.cache.failure;
  }

  /** All objects in the namespace, trimmed; undefined without an open watch. */
  list(): readonly T[] | undefined {
    return this.#use?.isSynced === true ? this.#use.cache.list() : undefined;
  }

  /** Resolves after the first list, or an abort. */
  async open(signal: AbortSignal): Promise<WatchedObjects<T>> {
    const { client, logger, namespace, resource, trim } = this.#options;
    if (!this.#use) {
      const abort = new AbortController();
      const cache = new Cache({ client, logger, resource, scope: { namespace }, trim });
      this.#use = { cache, abort, running: cache.run(abort.signal), users: 0, isSynced: false };
    }
    const use = this.#use;
    use.users++;
    await untilAborted(signal, use.cache.synced);
    use.isSynced ||= !signal.aborted;
    return {
      cache: use.cache,
      [Symbol.asyncDispose]: async () => {
        if (--use.users > 0) return;
        if (this.#use === use) this.#use = undefined;
        use.abort.abort();
        await use.running;
      },
    };
  }
}
