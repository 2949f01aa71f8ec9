/**
 * Volumes that are there, and are being brought back while the restore goes on: what may use one
 * waits for the end. A claim of such a volume stays bound meanwhile, so that nothing else would
 * keep a pod from it.
 */
export interface VolumesInPlace {
  /**
   * Until none of this restore is being written any more, and none of the namespace that anybody
   * else brings back. Throws the reason of the signal of the run.
   */
  settled(namespace: string): Promise<void>;
  /**
   * Of a namespace whose volumes were not all brought back: why nothing that may use them is
   * restored. Once all are settled.
   */
  problemOf(namespace: string): string | undefined;
}

/**
 * Types that start nothing: they are restored while volumes are being written. Of any other one it
 * is not known.
 */
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
