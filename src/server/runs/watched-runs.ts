import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  apiVersionOf,
  type Cache,
  CUSTOM_RESOURCE_DEFINITIONS,
  keyOf,
  type KubeObject,
  NAMESPACES,
} from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import { patiently } from './bucket-retries.ts';
import type { Run, RunKind } from './run-kind.ts';

type Watched<T extends Run> = Pick<Cache<T>, 'get' | 'list' | 'onChange' | 'failure'>;

export interface WatchOfRuns<T extends Run> {
  readonly failure: string | undefined;
  /** Resolves after the first list, or an abort. */
  open(signal: AbortSignal): Promise<AsyncDisposable & { readonly cache: Watched<T> }>;
}

export interface RunsViewOptions<T extends Run> {
  readonly kind: RunKind<T>;
  readonly lead: Lead;
  /** Shared with other controllers. */
  readonly shared: WatchOfRuns<T>;
}

/** Our choice: the result of a run must survive a night of maintenance of the API server. */
const PATIENCE_MS = 4 * 3_600_000;
/** Time until the objects of an unknown kind count as deleted. Our choice. */
const UNKNOWN_MS_MAX = 60_000;

/** The Backups or Restores of a namespace. Own writes are visible before the watch has them. */
export class RunsView<T extends Run> {
  readonly #options: RunsViewOptions<T>;
  #cache: Watched<T> = NOTHING;
  readonly #written = new Map<string, T>();

  constructor(options: RunsViewOptions<T>) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.shared.failure;
  }

  /** Resolves after the first list, or an abort. The caller closes the result. */
  async open(): Promise<AsyncDisposable> {
    const watched = await this.#options.shared.open(this.#options.lead.signal);
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

  /** Call it after `open`. The listener gets existing objects at once. */
  onChange(listener: (after: T | undefined, before: T | undefined) => void): void {
    this.#cache.onChange(listener);
  }

  get(ref: { readonly namespace?: string; readonly name: string }): T | undefined {
    return this.#written.get(keyOf(ref)) ?? this.#cache.get(ref);
  }

  list(): T[] {
    return this.#cache.list().map((run) => this.#written.get(keyOf(run.metadata)) ?? run);
  }

  /** Merge patch of this version. Throws `KUBE_CONFLICT` and `KUBE_NOT_FOUND`. */
  async patch(run: T, patch: object): Promise<T> {
    const { client, signal, assertLeading } = this.#options.lead;
    const { resource } = this.#options.kind;
    const { uid, resourceVersion } = run.metadata;
    const given = (patch as { metadata?: object }).metadata;
    assertLeading();
    const body = { ...patch, metadata: { ...given, uid, resourceVersion } };
    return this.#wrote(await client.patch(resource, run.metadata, body, { signal }));
  }

  /**
   * Merge patch of any version, with retries while the API server is away. Returns undefined if the
   * object is deleted or replaced.
   */
  async insist(run: T, patch: object, patienceMs = PATIENCE_MS): Promise<T | undefined> {
    const { client, logger, signal, assertLeading } = this.#options.lead;
    const { resource } = this.#options.kind;
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
            // Retries do not help against a new UID or a crowd of writers.
            if (!isCode(error, 'KUBE_CONFLICT') || (await this.#isThere(run))) throw error;
            return undefined;
          }
        },
        {
          what: `write down what became of a ${this.#options.kind.word}`,
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

  /** An API server, or a proxy before it, may not know the kind for a moment. */
  async #isGone(run: T, sinceMs: number): Promise<boolean> {
    const presence = await this.presence(run);
    return presence === 'deleted' || performance.now() - sinceMs > UNKNOWN_MS_MAX;
  }

  async #isThere({ metadata }: T): Promise<boolean> {
    const { client, signal } = this.#options.lead;
    const { resource } = this.#options.kind;
    const now = await client.find(resource, metadata, { signal });
    return now?.metadata.uid === metadata.uid;
  }

  /**
   * `deleted`: the API server has the kind but not this object. `unknown`: the kind or namespace is
   * going, as at an uninstall, so files in the bucket must stay.
   */
  async presence({ metadata }: T): Promise<'there' | 'deleted' | 'unknown'> {
    const { client, namespace, signal } = this.#options.lead;
    const { resource } = this.#options.kind;
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

  /** Whether the kind is or was deleted, so that no user chose this object. Its files stay. */
  async wentWithItsKind({ metadata }: T): Promise<boolean> {
    const { client, signal } = this.#options.lead;
    const { resource } = this.#options.kind;
    const name = `${resource.plural}.${resource.group}`;
    let kind: KubeObject | undefined;
    try {
      kind = await client.find(CUSTOM_RESOURCE_DEFINITIONS, { name }, { signal });
    } catch (error) {
      // Without the right to read kinds, keep the files.
      if (isCode(error, 'KUBE_FORBIDDEN')) return true;
      throw error;
    }
    // Kubernetes deletes the objects of a kind before the kind.
    if (kind?.metadata.deletionTimestamp !== undefined) return true;
    const [since, made] = [kind?.metadata.creationTimestamp, metadata.creationTimestamp].map(
      (text) => Date.parse(text ?? ''),
    );
    // A missing time is no reason to keep the files.
    return since !== undefined && made !== undefined && since > made;
  }

  #wrote(object: KubeObject): T {
    const { resource } = this.#options.kind;
    const run = { ...object, apiVersion: apiVersionOf(resource), kind: resource.kind } as T;
    const cached = this.#cache.get(object.metadata);
    if (!cached || versionOf(cached) < versionOf(run)) {
      this.#written.set(keyOf(object.metadata), run);
    }
    return run;
  }
}

/** Used until the view is open. */
const NOTHING: Watched<never> = {
  get: () => undefined,
  list: () => [],
  onChange: () => undefined,
  failure: undefined,
};

/** Versions grow. Kubernetes promises this since 1.35, and it was always true. */
export const versionOf = ({ metadata }: KubeObject): bigint => {
  const { resourceVersion } = metadata;
  return /^\d+$/.test(resourceVersion) ? BigInt(resourceVersion) : 0n;
};
