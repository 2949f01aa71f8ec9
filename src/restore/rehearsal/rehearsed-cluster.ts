import { CodedError, ObjectNames } from '../../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type NewObject,
  type ObjectRef,
  type Resource,
  type WriteOptions,
} from '../../kube/index.ts';
import type { NewKinds } from '../run/new-kinds.ts';

export interface RehearsedClusterOptions {
  readonly client: Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'>;
  readonly kinds: NewKinds;
  /** Whether the API server serves the kind now. */
  readonly isServed: (resource: Resource<KubeObject>) => boolean;
  /** Called for each object that would change, with the merge patch. */
  readonly onChange: (ref: ObjectRef, change: object) => void;
  /** Called for each new object that the API server cannot validate yet. */
  readonly onUnchecked: () => void;
}

const DEFINITIONS = 'customresourcedefinitions';
const VOLUMES = 'persistentvolumes';

/**
 * The cluster after the restore, simulated without changes. Creations are dry runs, so that quotas,
 * webhooks and validation answer. Objects in new namespaces or of new kinds are not sent.
 */
export class RehearsedCluster implements Pick<KubeClient, 'find' | 'collect' | 'create' | 'patch'> {
  readonly #options: RehearsedClusterOptions;
  readonly #namespaces = new Set<string>();
  readonly #made = new ObjectNames();
  /** Volumes that the restore would create. Claims look up the volumes that they name. */
  readonly #volumes = new Map<string, KubeObject>();

  constructor(options: RehearsedClusterOptions) {
    this.#options = options;
  }

  async find<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    options?: Parameters<KubeClient['find']>[2],
  ): Promise<T | undefined> {
    const { client, kinds } = this.#options;
    if (isOfKind(resource, 'namespaces') && this.#namespaces.has(ref.name)) {
      return { metadata: { name: ref.name } } as T;
    }
    if (isOfKind(resource, DEFINITIONS)) {
      const definition = kinds.definition(ref.name);
      if (definition) return definition as T;
    }
    const volume = isOfKind(resource, VOLUMES) ? this.#volumes.get(ref.name) : undefined;
    if (volume) return volume as T;
    if (this.#isUnknown(resource, ref.namespace)) return undefined;
    return await client.find(resource, ref, options);
  }

  collect<T extends KubeObject, K>(
    ...given: Parameters<typeof KubeClient.prototype.collect<T, K>>
  ): Promise<K[]> {
    return this.#options.client.collect(...given);
  }

  async create<T extends KubeObject>(
    resource: Resource<T>,
    object: NewObject<T>,
    options: WriteOptions = {},
  ): Promise<T> {
    const { client, kinds, isServed, onUnchecked } = this.#options;
    const { namespace, name = '' } = object.metadata;
    if (this.#has(resource, { namespace, name })) {
      throw new CodedError('KUBE_ALREADY_EXISTS', `${resource.plural} "${name}" already exists`);
    }
    let made: T;
    if (this.#isUnknown(resource, namespace)) {
      // The API server cannot validate an object in a new namespace, but knows its kind.
      if (!kinds.has(resource) && !isServed(resource)) {
        const text = `the server could not find the requested resource: the cluster has no ${keyOf(resource)}`;
        throw new CodedError('KUBE_NOT_FOUND', text);
      }
      onUnchecked();
      made = { ...object, metadata: { ...object.metadata, name } } as unknown as T;
    } else {
      made = await client.create(resource, object, { ...options, isDryRun: true });
    }
    this.#made.add(keyOf(resource), { namespace: namespace ?? '', name: made.metadata.name });
    if (isOfKind(resource, 'namespaces')) this.#namespaces.add(name);
    if (isOfKind(resource, VOLUMES)) this.#volumes.set(made.metadata.name, made);
    if (isOfKind(resource, DEFINITIONS)) kinds.add(made);
    return made;
  }

  async patch<T extends KubeObject>(
    resource: Resource<T>,
    ref: ObjectRef,
    patch: object,
    options: WriteOptions & { subresource?: string } = {},
  ): Promise<T> {
    // A patch of the status or the managed fields of a simulated object.
    if (this.#has(resource, ref)) return { ...patch, metadata: { ...ref } } as T;
    const changed = await this.#options.client.patch(resource, ref, patch, {
      ...options,
      isDryRun: true,
    });
    if (isOfKind(resource, VOLUMES)) this.#volumes.set(ref.name, changed);
    this.#options.onChange(ref, patch);
    return changed;
  }

  #has(resource: Resource<KubeObject>, { namespace = '', name }: Partial<ObjectRef>): boolean {
    return this.#made.find(keyOf(resource), { namespace, name: name ?? '' }) >= 0;
  }

  /** Whether the API server lacks the namespace or the kind. */
  #isUnknown(resource: Resource<KubeObject>, namespace: string | undefined): boolean {
    return this.#options.kinds.has(resource) || this.#namespaces.has(namespace ?? '');
  }
}

const keyOf = ({ group, plural }: Resource<KubeObject>): string =>
  group === '' ? plural : `${plural}.${group}`;

const isOfKind = ({ plural, group }: Resource<KubeObject>, wanted: string): boolean =>
  plural === wanted && (group === '' || group === 'apiextensions.k8s.io');
