import { NAMESPACES, type KubeObject, type Resource, STORAGE_CLASSES } from '../../kube/index.ts';
import { ApiError, detailsOf } from './api-error.ts';
import { DEFAULT_STORAGE_CLASS } from './resources.ts';
import type { Store, Stored } from './store.ts';

/** Namespaces of a new cluster. */
export const FIRST_NAMESPACES = ['default', 'kube-node-lease', 'kube-public', 'kube-system'];
const UNDELETABLE = new Set(['default', 'kube-public', 'kube-system']);

type Fields = Record<string, unknown>;

/** Decisions of a real API server on new objects that kubectl users see. */
export class Admission {
  readonly #store: () => Store;

  constructor(store: () => Store) {
    this.#store = store;
  }

  /** Sets defaults for missing fields. */
  complete({ group, plural, namespaced }: Resource<KubeObject>, object: Stored): void {
    if (group !== '') return;
    if (namespaced && object.metadata.namespace === undefined) return;
    const spec = object.spec as Fields | undefined;
    switch (plural) {
      case 'namespaces': {
        const { name, labels } = object.metadata;
        object.metadata.labels = { ...labels, 'kubernetes.io/metadata.name': name };
        object.spec = { ...spec, finalizers: ['kubernetes'] };
        object.status = { phase: 'Active' };
        break;
      }
      case 'persistentvolumeclaims': {
        if (!spec) break;
        spec.volumeMode ??= 'Filesystem';
        spec.storageClassName ??= this.#defaultClass();
        object.status = { phase: 'Pending' };
        break;
      }
      case 'persistentvolumes': {
        if (!spec) break;
        spec.volumeMode ??= 'Filesystem';
        spec.persistentVolumeReclaimPolicy ??= 'Retain';
        object.status = { phase: 'Pending' };
        break;
      }
      case 'pods': {
        object.status = { phase: 'Pending' };
        break;
      }
      case 'secrets': {
        object.type ??= 'Opaque';
        const { stringData } = object;
        if (typeof stringData !== 'object' || stringData === null) break;
        const added = Object.entries(stringData).map(([key, value]) => [
          key,
          Buffer.from(String(value)).toString('base64'),
        ]);
        object.data = { ...(object.data as Fields), ...Object.fromEntries(added) };
        delete object.stringData;
        break;
      }
    }
  }

  /** Throws {@link ApiError} if the namespace is missing or being deleted. */
  assertNamespace(resource: Resource<KubeObject>, namespace: string | undefined): void {
    if (!resource.namespaced || namespace === undefined) return;
    const found = this.#store().get(NAMESPACES, undefined, namespace);
    if (found.metadata.deletionTimestamp === undefined) return;
    const text = `unable to create new content in namespace ${namespace} because it is being terminated`;
    throw new ApiError(403, 'Forbidden', text);
  }

  /** Throws {@link ApiError}. */
  assertDeletable(resource: Resource<KubeObject>, name: string): void {
    if (resource.group !== '' || resource.plural !== NAMESPACES.plural) return;
    if (!UNDELETABLE.has(name)) return;
    const text = `namespaces "${name}" is forbidden: this namespace may not be deleted`;
    throw new ApiError(403, 'Forbidden', text, detailsOf(resource, name));
  }

  /** The newest class that is marked as default. */
  #defaultClass(): string | undefined {
    return this.#store()
      .list(STORAGE_CLASSES)
      .filter(({ metadata }) => metadata.annotations?.[DEFAULT_STORAGE_CLASS] === 'true')
      .sort((a, b) => (a.metadata.creationTimestamp < b.metadata.creationTimestamp ? 1 : -1))
      .at(0)?.metadata.name;
  }
}
