import { type ResourceFinder, typeOf } from '../../backup/index.ts';
import { CodedError } from '../../base/index.ts';

/** Resources that come first and last, with the names that users wrote. */
export interface RestorePriorities {
  readonly high: readonly string[];
  readonly low: readonly string[];
}

/**
 * Velero: pkg/cmd/server/config/config.go, defaultRestorePriorities (v1.18.3). Velero's list also
 * has a singular name. Discovery resolves it.
 */
export const RESTORE_PRIORITIES: RestorePriorities = {
  high: [
    ...['customresourcedefinitions', 'namespaces', 'storageclasses'],
    'volumesnapshotclass.snapshot.storage.k8s.io',
    'volumesnapshotcontents.snapshot.storage.k8s.io',
    'volumesnapshots.snapshot.storage.k8s.io',
    ...['datauploads.velero.io', 'persistentvolumes', 'persistentvolumeclaims'],
    ...['clusterroles', 'roles', 'serviceaccounts', 'clusterrolebindings', 'rolebindings'],
    ...['secrets', 'configmaps', 'limitranges', 'priorityclasses', 'pods', 'replicasets.apps'],
    ...['clusterclasses.cluster.x-k8s.io', 'endpoints', 'services'],
  ],
  low: [
    ...['clusterbootstraps.run.tanzu.vmware.com', 'clusters.cluster.x-k8s.io'],
    ...['clusterresourcesets.addons.cluster.x-k8s.io', 'apps.kappctrl.k14s.io'],
    'packageinstalls.packaging.carvel.dev',
  ],
};

const SEPARATOR = '-';

/**
 * Parses the server's flag: `-` separates the first and last resources. Throws `BAD_PRIORITIES`.
 */
export function parsePriorities(text: string): RestorePriorities {
  const names = text
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');
  const at = names.indexOf(SEPARATOR);
  if (at === -1) return { high: names, low: [] };
  if (names.indexOf(SEPARATOR, at + 1) !== -1) {
    throw new CodedError('BAD_PRIORITIES', `multiple priority separator "${SEPARATOR}" found`);
  }
  return { high: names.slice(0, at), low: names.slice(at + 1) };
}

/**
 * The types of a backup in the order of a restore, each once. Names are resolved late, because
 * their definitions may have just been restored. Velero: pkg/restore/restore.go,
 * getOrderedResources and getOrderedResourceCollection.
 */
export function* orderedTypes(
  types: Iterable<string>,
  { high, low }: RestorePriorities,
  resources: ResourceFinder,
): Generator<string> {
  const left = new Set(types);
  const named = (name: string): string => {
    const found = resources.find(name);
    return found && left.has(typeOf(found)) ? typeOf(found) : name;
  };
  const isLast = (type: string): boolean => low.some((name) => named(name) === type);
  for (const name of high) {
    const type = named(name);
    if (left.delete(type)) yield type;
  }
  for (const type of [...left].sort()) {
    if (!isLast(type) && left.delete(type)) yield type;
  }
  for (const name of low) {
    const type = named(name);
    if (left.delete(type)) yield type;
  }
  // Types whose name had another meaning before a definition was restored.
  for (const type of [...left].sort()) yield type;
}
