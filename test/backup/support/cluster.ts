import { asError, CodedError, isCode, parseSelector } from '../../../src/base/index.ts';
import { NamespaceFilter, typeOf } from '../../../src/backup/index.ts';
import { Discovery, type KubeObject, type Resource } from '../../../src/kube/index.ts';

interface Kind {
  readonly plural: string;
  readonly kind: string;
  readonly namespaced?: boolean;
}

const VERBS = ['create', 'delete', 'get', 'list'];

const GROUPS: Record<string, readonly Kind[]> = {
  '': [
    { plural: 'configmaps', kind: 'ConfigMap' },
    { plural: 'namespaces', kind: 'Namespace', namespaced: false },
    { plural: 'persistentvolumeclaims', kind: 'PersistentVolumeClaim' },
    { plural: 'persistentvolumes', kind: 'PersistentVolume', namespaced: false },
    { plural: 'pods', kind: 'Pod' },
    { plural: 'events', kind: 'Event' },
  ],
  'events.k8s.io': [{ plural: 'events', kind: 'Event' }],
  'scheduling.k8s.io': [{ plural: 'priorityclasses', kind: 'PriorityClass', namespaced: false }],
  'apiextensions.k8s.io': [
    { plural: 'customresourcedefinitions', kind: 'CustomResourceDefinition', namespaced: false },
  ],
  'stable.example.com': [{ plural: 'things', kind: 'Thing' }],
};

/** Objects by type, and an API that lists them in pages. Tests set its faults. */
export class FakeCluster {
  readonly objects = new Map<string, KubeObject[]>();
  readonly asked: string[] = [];
  /** Called before each page. An error that it throws is the server's answer. */
  onList: (type: string, options: { continue?: string | undefined; limit?: number }) => void = () =>
    undefined;
  onGet: (type: string, name: string) => void = () => undefined;
  groups: Record<string, readonly Kind[]> = GROUPS;
  /** The versions of groups without `v1`. */
  readonly versions: Record<string, string> = {};
  /** Groups whose own servers do not answer. */
  readonly stale = new Set<string>();

  add(type: string, ...names: (string | object)[]): this {
    const list = this.objects.get(type) ?? [];
    for (const each of names) {
      const object = typeof each === 'string' ? named(each) : each;
      list.push(object as KubeObject);
    }
    this.objects.set(type, list);
    return this;
  }

  namespaces(...names: string[]): this {
    return this.add(
      'namespaces',
      ...names.map((name) => ({ metadata: { name }, status: { phase: 'Active' } })),
    );
  }

  discovery(): Promise<Discovery> {
    const raw = ({ path }: { path: string }): Promise<unknown> => {
      if (path === '/version')
        return Promise.resolve({ major: '1', minor: '36', gitVersion: 'v1' });
      const items = Object.entries(this.groups)
        .filter(([name]) => (name === '') === (path === '/api'))
        .map(([name, kinds]) => ({
          metadata: { name },
          versions: [
            {
              version: this.versions[name] ?? 'v1',
              ...(this.stale.has(name) && { freshness: 'Stale' }),
              resources: kinds.map(({ plural, kind, namespaced }) => ({
                resource: plural,
                responseKind: { kind },
                scope: namespaced === false ? 'Cluster' : 'Namespaced',
                verbs: VERBS,
              })),
            },
          ],
        }));
      return Promise.resolve({ kind: 'APIGroupDiscoveryList', items });
    };
    return Discovery.open({ raw });
  }

  /** As KubeClient. */
  readonly listPage = (
    resource: Resource<KubeObject>,
    options: {
      namespace?: string | undefined;
      labelSelector?: string | undefined;
      limit?: number;
      continue?: string | undefined;
    },
  ) => {
    const type = typeOf(resource);
    this.asked.push(
      `list ${type} ${options.namespace ?? '*'} ${options.labelSelector ?? ''}`.trim(),
    );
    try {
      this.onList(type, options);
    } catch (error) {
      return Promise.reject(asError(error));
    }
    const selector = parseSelector(options.labelSelector ?? '');
    const all = (this.objects.get(type) ?? []).filter(
      ({ metadata }) =>
        (options.namespace === undefined || metadata.namespace === options.namespace) &&
        selector.matches(metadata.labels),
    );
    const from = Number(options.continue ?? 0);
    const to = from + (options.limit ?? Infinity);
    const items = all.slice(from, to).map((object) => this.#whole(resource, object));
    return Promise.resolve({
      items,
      resourceVersion: '1',
      continue: to < all.length ? String(to) : undefined,
    }) as never;
  };

  readonly collect = async <K>(
    resource: Resource<KubeObject>,
    options: { readonly namespace?: string | undefined; readonly labelSelector?: string },
    take: (item: KubeObject) => readonly K[],
  ): Promise<K[]> => {
    const { items } = (await this.listPage(resource, options)) as unknown as {
      items: KubeObject[];
    };
    return items.flatMap(take);
  };

  readonly find = (
    resource: Resource<KubeObject>,
    { name, namespace }: { name: string; namespace?: string | undefined },
  ) => {
    const type = typeOf(resource);
    this.asked.push(`get ${type} ${namespace ?? ''}/${name}`);
    try {
      this.onGet(type, name);
    } catch (error) {
      return isCode(error, 'KUBE_NOT_FOUND')
        ? Promise.resolve(undefined)
        : Promise.reject(asError(error));
    }
    const found = (this.objects.get(type) ?? []).find(
      ({ metadata }) => metadata.name === name && (metadata.namespace ?? '') === (namespace ?? ''),
    );
    return Promise.resolve(found && this.#whole(resource, found)) as never;
  };

  #whole(resource: Resource<KubeObject>, object: KubeObject): KubeObject {
    const { group, version, kind } = resource;
    const apiVersion = group === '' ? version : `${group}/${version}`;
    // Only as deep as anything is changed in it: objects may be nested deeper than a clone can be.
    return { apiVersion, kind, ...object, metadata: structuredClone(object.metadata) };
  }

  filter(includes: string[] = ['*'], excludes: string[] = []): NamespaceFilter {
    const existing = (this.objects.get('namespaces') ?? []).map(({ metadata }) => metadata.name);
    return NamespaceFilter.of(existing, includes, excludes);
  }
}

/** `namespace/name`, or a name alone. */
export function named(id: string, more: object = {}): KubeObject {
  const [first = '', second] = id.split('/');
  const metadata = second === undefined ? { name: first } : { namespace: first, name: second };
  return {
    ...more,
    metadata: { ...metadata, ...(more as { metadata?: object }).metadata },
  } as never;
}

export const refusal = (code: string, facts: Record<string, string> = {}): CodedError =>
  new CodedError(code, `the server says ${code}`, {
    retry: code === 'KUBE_UNAVAILABLE' ? 'backoff' : 'never',
    facts,
  });
