import { CodedError, ManualClock, parseGoTime } from '../../../../src/base/index.ts';
import type {
  KubeClient,
  KubeObject,
  Resource,
  UserInfo,
  WatchEvent,
} from '../../../../src/kube/index.ts';

export const NOW = '2026-11-26T10:00:00Z';
export const NAMESPACE = 'velero';

/** The rights of a token. */
export interface TokenHolder {
  readonly user: UserInfo;
  /** All kinds, none, or all except one. */
  readonly mayList: boolean | { readonly except: string };
  /** Audiences of the token. Default: the page. */
  readonly audiences?: readonly string[];
  /** Whether the authenticator of this token ignores audiences. */
  readonly isUnaware?: boolean;
  /** Names of backups whose files the user may see. */
  readonly mayBrowse?: readonly string[];
}

type Event = WatchEvent<KubeObject>;

/** An API server in memory for the status page, which records all requests. */
export class FakeApi {
  readonly clock = new ManualClock(parseGoTime(NOW));
  /** For example `list nodes`, in order. */
  readonly asked: string[] = [];
  readonly tokens = new Map<string, TokenHolder>();
  /** Fails all reviews, and ends all watches. */
  isAway = false;
  /** Kinds that may not be read. */
  readonly refused = new Set<string>();
  readonly #objects = new Map<string, KubeObject[]>();
  readonly #watchers = new Map<string, Set<(event: Event | undefined) => void>>();
  #version = 1;

  put<T extends KubeObject>(resource: Resource<T>, ...objects: readonly object[]): this {
    const known = this.#objects.get(resource.plural) ?? [];
    this.#objects.set(resource.plural, known);
    for (const given of objects) {
      const object = this.#whole(given);
      const at = known.findIndex(({ metadata }) => metadata.name === object.metadata.name);
      if (at >= 0) known[at] = object;
      else known.push(object);
      this.#tell(resource.plural, { type: at >= 0 ? 'MODIFIED' : 'ADDED', object });
    }
    return this;
  }

  breakWatches(): void {
    for (const plural of this.#watchers.keys()) this.#tell(plural, undefined);
  }

  countOf(start: string): number {
    return this.asked.filter((what) => what.startsWith(start)).length;
  }

  #whole(given: object): KubeObject {
    const { metadata, ...rest } = given as KubeObject;
    const { name } = metadata;
    const defaults = {
      uid: `uid-${name}`,
      namespace: NAMESPACE,
      creationTimestamp: '2026-11-26T09:00:00Z',
    };
    return {
      ...rest,
      metadata: { ...defaults, ...metadata, resourceVersion: String(++this.#version) },
    };
  }

  #tell(plural: string, event: Event | undefined): void {
    for (const tell of this.#watchers.get(plural) ?? []) tell(event);
  }

  #note(what: string, { plural }: Resource<KubeObject>): KubeObject[] {
    this.asked.push(`${what} ${plural}`);
    if (this.isAway) {
      throw new CodedError('KUBE_UNAVAILABLE', 'cannot reach the API server', { retry: 'backoff' });
    }
    if (this.refused.has(plural)) throw new CodedError('KUBE_FORBIDDEN', `${plural} is forbidden`);
    return structuredClone(this.#objects.get(plural) ?? []);
  }

  readonly client = {
    clock: this.clock,
    listPage: (resource: Resource<KubeObject>) => {
      const items = this.#note('list', resource);
      return Promise.resolve({ items, resourceVersion: '1', continue: undefined });
    },
    // Async, so that a thrown error becomes a rejection, as in a real client.
    list: async (resource: Resource<KubeObject>) => {
      await Promise.resolve();
      return this.#note('list', resource);
    },
    collect: async <T>(
      resource: Resource<KubeObject>,
      _options: object,
      keep: (object: KubeObject) => readonly T[],
    ): Promise<T[]> => {
      await Promise.resolve();
      return this.#note('list', resource).flatMap(keep);
    },
    find: async (resource: Resource<KubeObject>, { name }: { name: string }) => {
      await Promise.resolve();
      return this.#note('find', resource).find(({ metadata }) => metadata.name === name);
    },
    get: async (resource: Resource<KubeObject>, { name }: { name: string }) => {
      await Promise.resolve();
      const found = this.#note('get', resource).find(({ metadata }) => metadata.name === name);
      if (found) return { ...found, kind: resource.kind };
      throw new CodedError('KUBE_NOT_FOUND', `there is no ${resource.kind} ${name}`);
    },
    create: async ({ kind, plural }: Resource<KubeObject>, { spec }: { spec: unknown }) => {
      await Promise.resolve();
      this.#note('create', { plural } as Resource<KubeObject>);
      if (kind === 'TokenReview') {
        return { status: this.#reviewed(spec as { token: string; audiences?: string[] }) };
      }
      const { user, resourceAttributes } = spec as {
        user: string;
        resourceAttributes: Record<'namespace' | 'verb' | 'group' | 'resource' | 'name', string>;
      };
      const { namespace, verb, group, resource, name } = resourceAttributes;
      const isAsked =
        namespace === NAMESPACE && ['list', 'browse'].includes(verb) && group === 'velero.io';
      const { mayList, mayBrowse = [] } =
        [...this.tokens.values()].find((each) => each.user.username === user) ?? {};
      if (verb === 'browse') {
        return {
          status: { allowed: isAsked && resource === 'backups' && mayBrowse.includes(name) },
        };
      }
      const allowed = typeof mayList === 'object' ? resource !== mayList.except : mayList === true;
      return { status: { allowed: isAsked && allowed } };
    },
    watch: (
      resource: Resource<KubeObject>,
      options: { signal: AbortSignal; sendInitialEvents?: boolean; onActivity?: () => void },
    ) => this.#watch(resource, options),
  } as unknown as KubeClient;

  /** Like kube-apiserver: without audiences in the review, its own audience counts. */
  #reviewed({
    token,
    audiences: asked = ['api'],
  }: {
    token: string;
    audiences?: string[];
  }): object {
    const holder = this.tokens.get(token);
    if (!holder) return {};
    const { user, audiences: own = ['longshore-status-page'], isUnaware = false } = holder;
    if (isUnaware) return { authenticated: true, user };
    const audiences = asked.filter((audience) => own.includes(audience));
    return audiences.length > 0 ? { authenticated: true, user, audiences } : {};
  }

  async *#watch(
    resource: Resource<KubeObject>,
    options: { signal: AbortSignal; sendInitialEvents?: boolean; onActivity?: () => void },
  ): AsyncGenerator<Event> {
    await Promise.resolve();
    const objects = this.#note('watch', resource);
    options.onActivity?.();
    const waiting: (Event | undefined)[] = [];
    if (options.sendInitialEvents === true) {
      for (const object of objects) waiting.push({ type: 'ADDED', object });
      const annotations = { 'k8s.io/initial-events-end': 'true' };
      const metadata = { resourceVersion: String(this.#version), annotations };
      waiting.push({ type: 'BOOKMARK', object: { metadata } } as never);
    }
    let wake: (() => void) | undefined;
    const tell = (event: Event | undefined): void => {
      waiting.push(event && structuredClone(event));
      wake?.();
    };
    const watchers = this.#watchers.get(resource.plural) ?? new Set();
    this.#watchers.set(resource.plural, watchers.add(tell));
    const onAbort = (): void => wake?.();
    options.signal.addEventListener('abort', onAbort, { once: true });
    try {
      while (!options.signal.aborted) {
        const event = waiting.shift();
        if (event) yield event;
        else if (this.isAway)
          throw new CodedError('KUBE_UNAVAILABLE', 'cannot reach the API server');
        else await new Promise<void>((resolve) => (wake = resolve));
      }
    } finally {
      watchers.delete(tell);
      options.signal.removeEventListener('abort', onAbort);
    }
  }
}
