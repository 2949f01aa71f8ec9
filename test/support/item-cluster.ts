import { randomUUID } from 'node:crypto';
import { CodedError, systemClock } from '../../src/base/index.ts';
import {
  apiVersionOf,
  type KubeClient,
  type KubeObject,
  type Resource,
} from '../../src/kube/index.ts';

interface Scope {
  readonly namespace?: string;
  readonly name?: string;
  readonly labelSelector?: string;
  readonly fieldSelector?: string;
}

/** A cluster of some objects in memory, without watches, for code that lists and changes them. */
export class ItemCluster {
  readonly #objects: KubeObject[];
  readonly #created: (made: KubeObject, cluster: ItemCluster) => void;

  constructor(
    objects: readonly object[],
    created: (made: KubeObject, cluster: ItemCluster) => void = () => undefined,
  ) {
    this.#objects = structuredClone(objects) as KubeObject[];
    this.#created = created;
  }

  add(object: object): void {
    this.#objects.push(object as KubeObject);
  }

  all(kind: string): KubeObject[] {
    return this.#objects.filter((each) => each.kind === kind);
  }

  get client(): KubeClient {
    const listed = (resource: Resource<KubeObject>, scope: Scope = {}) =>
      structuredClone(this.all(resource.kind).filter((each) => isIn(each, scope)));
    const found = (resource: Resource<KubeObject>, ref: Scope) =>
      this.all(resource.kind).find((each) => isIn(each, ref));
    const existing = (resource: Resource<KubeObject>, ref: Scope) => {
      const object = found(resource, ref);
      if (object) return object;
      throw new CodedError('KUBE_NOT_FOUND', `${resource.plural} "${ref.name ?? ''}" not found`);
    };
    const client = {
      clock: systemClock,
      list: (resource: Resource<KubeObject>, scope: Scope) => listed(resource, scope),
      listPage: (resource: Resource<KubeObject>, scope: Scope) => ({
        items: listed(resource, scope),
        resourceVersion: '1',
      }),
      collect: (
        resource: Resource<KubeObject>,
        scope: Scope,
        take: (item: KubeObject) => readonly unknown[],
      ) => listed(resource, scope).flatMap(take),
      get: (resource: Resource<KubeObject>, ref: Scope) => structuredClone(existing(resource, ref)),
      find: (resource: Resource<KubeObject>, ref: Scope) => structuredClone(found(resource, ref)),
      create: (resource: Resource<KubeObject>, object: object) => {
        const made = structuredClone({
          apiVersion: apiVersionOf(resource),
          kind: resource.kind,
          ...object,
        }) as KubeObject;
        made.metadata.uid = randomUUID();
        this.add(made);
        this.#created(made, this);
        return structuredClone(made);
      },
      patch: (resource: Resource<KubeObject>, ref: Scope, patch: object) => {
        const object = existing(resource, ref);
        merge(object as unknown as Record<string, unknown>, patch);
        return structuredClone(object);
      },
      delete: (resource: Resource<KubeObject>, ref: Scope) => {
        const object = found(resource, ref);
        if (object) this.#objects.splice(this.#objects.indexOf(object), 1);
        return object !== undefined;
      },
      // eslint-disable-next-line @typescript-eslint/require-await
      watch: async function* () {
        yield* [];
      },
    };
    return new Proxy(client, {
      get(_, name) {
        const call: unknown = Reflect.get(client, name);
        if (typeof call !== 'function' || name === 'watch') return call;
        return (...args: unknown[]) =>
          new Promise((resolve) => {
            resolve((call as (...args: unknown[]) => unknown)(...args));
          });
      },
    }) as unknown as KubeClient;
  }
}

function isIn({ metadata }: KubeObject, scope: Scope): boolean {
  const name = scope.name ?? /^metadata\.name=(.*)$/.exec(scope.fieldSelector ?? '')?.[1];
  if (name !== undefined && metadata.name !== name) return false;
  if (scope.namespace !== undefined && metadata.namespace !== scope.namespace) return false;
  const wanted = (scope.labelSelector ?? '').split(',').filter((each) => each !== '');
  return wanted.every((each) => {
    const [key = '', value] = each.split('=');
    const label = metadata.labels?.[key];
    return value === undefined ? label !== undefined : label === value;
  });
}

function merge(target: Record<string, unknown>, patch: object): void {
  for (const [key, value] of Object.entries(patch) as [string, unknown][]) {
    if (value === null) delete target[key];
    else if (typeof value === 'object' && !Array.isArray(value)) {
      target[key] ??= {};
      merge(target[key] as Record<string, unknown>, value);
    } else target[key] = value;
  }
}
