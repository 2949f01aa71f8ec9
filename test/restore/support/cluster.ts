import { typeOf } from '../../../src/backup/index.ts';
import { asError, CodedError } from '../../../src/base/index.ts';
import {
  apiVersionOf,
  applyMergePatch,
  type Discovery,
  type KubeObject,
  type Resource,
} from '../../../src/kube/index.ts';
import { FakeCluster } from '../../backup/support/cluster.ts';

interface Ref {
  readonly name: string;
  readonly namespace?: string | undefined;
}

/**
 * A cluster that creates objects like a server: with UIDs, times and conflicts. Tests set its
 * faults.
 */
export class RestoreCluster extends FakeCluster {
  /** `create pods app/web`, `patch …`, in their order. */
  readonly calls: string[] = [];
  readonly patches: { readonly id: string; readonly patch: object }[] = [];
  /** Called before the creation. An error that it throws is the server's answer. */
  onCreate: (type: string, object: KubeObject) => void = () => undefined;
  /** Called after the creation. An error that it throws replaces the answer. */
  onCreated: (type: string, object: KubeObject) => void = () => undefined;
  onPatch: (type: string, ref: Ref) => void = () => undefined;
  now = '2026-11-26T12:00:00Z';
  refreshes = 0;
  #uids = 0;
  #discovery: Discovery | undefined;

  constructor() {
    super();
    this.groups = {
      ...this.groups,
      '': [
        ...(this.groups[''] ?? []),
        { plural: 'secrets', kind: 'Secret' },
        { plural: 'serviceaccounts', kind: 'ServiceAccount' },
        { plural: 'services', kind: 'Service' },
      ],
      apps: [
        { plural: 'deployments', kind: 'Deployment' },
        { plural: 'replicasets', kind: 'ReplicaSet' },
      ],
      batch: [{ plural: 'jobs', kind: 'Job' }],
    };
  }

  /** As the server would be asked. */
  async resources(): Promise<
    Pick<Discovery, 'failures' | 'find' | 'findIn' | 'lists' | 'refresh'>
  > {
    this.#discovery = await this.discovery();
    const lists = (): Discovery['lists'] => this.#discovery?.lists ?? [];
    const failures = (): Discovery['failures'] => this.#discovery?.failures ?? [];
    return {
      get lists() {
        return lists();
      },
      get failures() {
        return failures();
      },
      find: (name) => this.#discovery?.find(name),
      findIn: (group, resource) => this.#discovery?.findIn(group, resource),
      refresh: async () => {
        this.refreshes++;
        this.#discovery = await this.discovery();
      },
    };
  }

  get(type: string, id: string): (KubeObject & Record<string, unknown>) | undefined {
    return this.objects.get(type)?.find(({ metadata: { namespace = '', name } }) => {
      return id === (namespace === '' ? name : `${namespace}/${name}`);
    }) as (KubeObject & Record<string, unknown>) | undefined;
  }

  remove(type: string, id: string): void {
    const list = this.objects.get(type) ?? [];
    const found = this.get(type, id);
    if (found) list.splice(list.indexOf(found), 1);
  }

  readonly create = (resource: Resource<KubeObject>, object: object): Promise<never> =>
    this.#answer(() => {
      const type = typeOf(resource);
      const given = structuredClone(object) as KubeObject;
      const { namespace = '', name } = given.metadata;
      const id = namespace === '' ? name : `${namespace}/${name}`;
      this.calls.push(`create ${type} ${id}`);
      this.onCreate(type, given);
      const isServed = (this.groups[resource.group] ?? []).some(
        ({ plural }) => plural === resource.plural,
      );
      if (!isServed) {
        throw refused('KUBE_NOT_FOUND', 'the server could not find the requested resource');
      }
      if (namespace !== '' && !this.get('namespaces', namespace)) {
        throw refused('KUBE_NOT_FOUND', `namespaces "${namespace}" not found`);
      }
      if (this.get(type, id)) {
        throw refused('KUBE_ALREADY_EXISTS', `${type} "${name}" already exists`);
      }
      const made = {
        ...given,
        apiVersion: apiVersionOf(resource),
        kind: resource.kind,
        metadata: {
          ...given.metadata,
          uid: `uid-${++this.#uids}`,
          resourceVersion: '1',
          creationTimestamp: this.now,
        },
      };
      this.add(type, made);
      this.onCreated(type, made);
      return made;
    });

  readonly patch = (
    resource: Resource<KubeObject>,
    ref: Ref,
    patch: object,
    options: { readonly subresource?: string } = {},
  ): Promise<never> =>
    this.#answer(() => {
      const type = typeOf(resource);
      const { namespace = '', name } = ref;
      const id = namespace === '' ? name : `${namespace}/${name}`;
      this.calls.push(`patch ${type} ${id}${options.subresource ? ` ${options.subresource}` : ''}`);
      this.patches.push({ id: `${type} ${id}`, patch });
      this.onPatch(type, ref);
      const found = this.get(type, id);
      if (!found) throw refused('KUBE_NOT_FOUND', `${type} "${name}" not found`);
      const list = this.objects.get(type) ?? [];
      const changed = applyMergePatch(found, patch) as KubeObject;
      list[list.indexOf(found)] = changed;
      return changed;
    });

  #answer(task: () => object): Promise<never> {
    try {
      return Promise.resolve(structuredClone(task()) as never);
    } catch (error) {
      return Promise.reject(asError(error));
    }
  }
}

export const refused = (code: string, text: string, httpStatus?: number): CodedError =>
  new CodedError(code, text, {
    retry: code === 'KUBE_UNAVAILABLE' ? 'backoff' : 'never',
    facts: httpStatus === undefined ? {} : { httpStatus },
  });
