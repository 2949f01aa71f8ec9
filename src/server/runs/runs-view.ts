import { CodedError, isCode, type Logger, messageOf } from '../../base/index.ts';
import {
  apiVersionOf,
  type Cache,
  CUSTOM_RESOURCE_DEFINITIONS,
  keyOf,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type Resource,
} from '../../kube/index.ts';
import { patiently } from './patience.ts';

type Watched<T extends KubeObject> = Pick<Cache<T>, 'get' | 'list' | 'onChange' | 'failure'>;

/** A watch of all Backups, or of all Restores. */
export interface WatchOfRuns<T extends KubeObject> {
  readonly failure: string | undefined;
  /** Resolves after the first list, or an abort. */
  open(signal: AbortSignal): Promise<AsyncDisposable & { readonly cache: Watched<T> }>;
}

export interface RunsViewOptions<T extends KubeObject> {
  readonly client: KubeClient;
  readonly resource: Resource<T>;
  /** Whose watch it is. */
  readonly shared: WatchOfRuns<T>;
  readonly logger: Logger;
  readonly namespace: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Our choice: what became of a run must not be lost to an API server that is away for a night's
 * maintenance.
 */
const PATIENCE_MS = 4 * 3_600_000;
/** A kind that nobody serves for so long is gone, and all its objects with it. Our choice. */
const UNKNOWN_MS_MAX = 60_000;

/**
 * The Backups or Restores of a namespace, as far as this process knows them: what it has written
 * itself is there at once, and not only when the watch brings it.
 */
export class RunsView<T extends KubeObject> {
  readonly #options: RunsViewOptions<T>;
  #cache: Watched<T> = NOTHING;
  readonly #written = new Map<string, T>();

  constructor(options: RunsViewOptions<T>) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.shared.failure;
  }

  /** Resolves after the first list, or an abort. Whoever opens it closes it. */
  async open(): Promise<AsyncDisposable> {
    const watched = await this.#options.shared.open(this.#options.signal);
    this.#cache = watched.cache;
    this.#cache.onChange((after, before) => {
      const { metadata } = (after ?? before) as KubeObject;
      const written = this.#written.get(keyOf(metadata));
      if (!written) return;
      const isOlder =
        after?.metadata.uid === written.metadata.uid && versionOf(after) < versionOf(written);
      if (!isOlder) this.#written.delete(keyOf(metadata));
    });
    return watched;
  }

  /** Once it is open. What is there already is told at once. */
  onChange(listener: (after: T | undefined, before: T | undefined) => void): void {
    this.#cache.onChange(listener);
  }

  get(ref: { readonly namespace?: string; readonly name: string }): T | undefined {
    return this.#written.get(keyOf(ref)) ?? this.#cache.get(ref);
  }

  list(): T[] {
    return this.#cache.list().map((run) => this.#written.get(keyOf(run.metadata)) ?? run);
  }

  /**
   * A merge patch of this version of it. Throws `KUBE_CONFLICT` where somebody else has changed it,
   * `KUBE_NOT_FOUND`.
   */
  async patch(run: T, patch: object): Promise<T> {
    const { client, resource, signal, assertLeading } = this.#options;
    const { uid, resourceVersion } = run.metadata;
    const given = (patch as { metadata?: object }).metadata;
    assertLeading();
    const body = { ...patch, metadata: { ...given, uid, resourceVersion } };
    return this.#wrote(await client.patch(resource, run.metadata, body, { signal }));
  }

  /**
   * A merge patch that must arrive, whatever else has changed: tried again while the API server is
   * away. Undefined where it is gone, or another one has its name.
   */
  async insist(run: T, patch: object, patienceMs = PATIENCE_MS): Promise<T | undefined> {
    const { client, resource, logger, signal, assertLeading } = this.#options;
    const { uid } = run.metadata;
    const given = (patch as { metadata?: object }).metadata;
    const body = { ...patch, metadata: { ...given, uid } };
    const since = performance.now();
    try {
      const object = await patiently(
        async () => {
          assertLeading();
          try {
            return await client.patch(resource, run.metadata, body, { signal });
          } catch (error) {
            if (isCode(error, 'KUBE_NOT_FOUND')) {
              if (await this.#isGone(run, since)) return undefined;
              throw new CodedError('KUBE_UNAVAILABLE', messageOf(error), { retry: 'backoff' });
            }
            // Another UID is a conflict, which no waiting mends, and so is a crowd of writers.
            if (!isCode(error, 'KUBE_CONFLICT') || (await this.#isThere(run))) throw error;
            return undefined;
          }
        },
        {
          what: `write down what became of a ${resource.kind.toLowerCase()}`,
          logger,
          signal,
          patienceMs,
        },
      );
      return object && this.#wrote(object);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      throw error;
    }
  }

  /** An API server, or what is before it, may not know the kind for a moment. */
  async #isGone(run: T, sinceMs: number): Promise<boolean> {
    const presence = await this.presence(run);
    return presence === 'deleted' || performance.now() - sinceMs > UNKNOWN_MS_MAX;
  }

  async #isThere({ metadata }: T): Promise<boolean> {
    const { client, resource, signal } = this.#options;
    const now = await client.find(resource, metadata, { signal });
    return now?.metadata.uid === metadata.uid;
  }

  /**
   * Whether somebody has deleted it: the API server has its kind, and not this one, `deleted`.
   * Where kinds or the whole namespace go, as when a server is uninstalled, what is in the bucket
   * stays.
   */
  async presence({ metadata }: T): Promise<'there' | 'deleted' | 'unknown'> {
    const { client, resource, namespace, signal } = this.#options;
    const space = await client.find(NAMESPACES, { name: namespace }, { signal });
    const isSpaceGoing = !space || space.metadata.deletionTimestamp !== undefined;
    try {
      const found = await client.list(resource, {
        namespace,
        signal,
        fieldSelector: `metadata.name=${metadata.name}`,
      });
      if (found.some(({ metadata: { uid } }) => uid === metadata.uid)) return 'there';
      return isSpaceGoing ? 'unknown' : 'deleted';
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return 'unknown';
      throw error;
    }
  }

  /**
   * Whether its whole kind is being deleted, or was and is back: nobody has decided on this one
   * then, and what is in the bucket stays.
   */
  async wentWithItsKind({ metadata }: T): Promise<boolean> {
    const { client, resource, signal } = this.#options;
    const name = `${resource.plural}.${resource.group}`;
    let kind: KubeObject | undefined;
    try {
      kind = await client.find(CUSTOM_RESOURCE_DEFINITIONS, { name }, { signal });
    } catch (error) {
      // Who may not know keeps them.
      if (isCode(error, 'KUBE_FORBIDDEN')) return true;
      throw error;
    }
    // Its objects go before it does.
    if (kind?.metadata.deletionTimestamp !== undefined) return true;
    const [since, made] = [kind?.metadata.creationTimestamp, metadata.creationTimestamp].map(
      (text) => Date.parse(text ?? ''),
    );
    // What is not known is no reason.
    return since !== undefined && made !== undefined && since > made;
  }

  #wrote(object: KubeObject): T {
    const { resource } = this.#options;
    const run = { ...object, apiVersion: apiVersionOf(resource), kind: resource.kind } as T;
    const cached = this.#cache.get(object.metadata);
    if (!cached || versionOf(cached) < versionOf(run)) {
      this.#written.set(keyOf(object.metadata), run);
    }
    return run;
  }
}

/** Until it is open. */
const NOTHING: Watched<never> = {
  get: () => undefined,
  list: () => [],
  onChange: () => undefined,
  failure: undefined,
};

/** Versions grow, as Kubernetes promises since 1.35, and has always done. */
export const versionOf = ({ metadata }: KubeObject): bigint => {
  const { resourceVersion } = metadata;
  return /^\d+$/.test(resourceVersion) ? BigInt(resourceVersion) : 0n;
};
