/**
 * Existing volumes whose data is restored during the run. Items that may use such a volume wait
 * until its data is written. The claim stays bound meanwhile, so nothing else would stop a pod.
 */
export interface VolumesInPlace {
  /**
   * Resolves when the namespace has no volume that a restore is still writing. This includes other
   * restores. Throws the reason of the signal of the run.
   */
  settled(namespace: string): Promise<void>;
  /** Why the namespace's volumes must not be used: some failed. Call it after `settled`. */
  problemOf(namespace: string): string | undefined;
}

/** Types that start no pods. They do not wait for volumes, and all other types do. */
const HARMLESS = new Set([
  ...['customresourcedefinitions.apiextensions.k8s.io', 'namespaces'],
  ...['storageclasses.storage.k8s.io', 'volumesnapshotclasses.snapshot.storage.k8s.io'],
  'volumesnapshotcontents.snapshot.storage.k8s.io',
  ...['volumesnapshots.snapshot.storage.k8s.io', 'datauploads.velero.io'],
  ...['persistentvolumes', 'persistentvolumeclaims', 'serviceaccounts', 'secrets', 'configmaps'],
  ...['clusterroles', 'roles', 'clusterrolebindings', 'rolebindings'].map(
    (name) => `${name}.rbac.authorization.k8s.io`,
  ),
  ...['limitranges', 'resourcequotas', 'priorityclasses.scheduling.k8s.io'],
  ...['endpoints', 'services', 'networkpolicies.networking.k8s.io'],
  'endpointslices.discovery.k8s.io',
]);

export const mayUseVolumes = (groupResource: string): boolean => !HARMLESS.has(groupResource);
