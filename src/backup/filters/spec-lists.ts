import { messageOf } from '../../base/index.ts';
import { assertLasting, type BackupSpec, type KubeClient, NAMESPACES } from '../../kube/index.ts';
import { listErrors, namespaceListErrors, scopedListErrors } from './list-errors.ts';
import { usesOldLists } from './resources.ts';

const EXCLUDE_LABEL = 'velero.io/exclude-from-backup';
/** Types that a backup creates and adds itself. Velero: pkg/controller/backup_controller.go. */
const OWN_NAMESPACED = ['volumesnapshots.snapshot.storage.k8s.io'];
const OWN_CLUSTER = ['volumesnapshotcontents.snapshot.storage.k8s.io'];

/** Start of an error message about mixed filter fields. */
export const OLD_LISTS =
  'include-resources, exclude-resources and include-cluster-resources are old filter parameters.\n';
const MIXED = `${OLD_LISTS}include-cluster-scoped-resources, exclude-cluster-scoped-resources, include-namespace-scoped-resources and exclude-namespace-scoped-resources are new filter parameters.\nThey cannot be used together`;

/** Excludes the namespaces with the label. Adds problems to `errors`, as below. */
export async function excludeLabeledNamespaces(
  spec: BackupSpec,
  client: Pick<KubeClient, 'list'>,
  errors: string[],
  signal?: AbortSignal,
): Promise<void> {
  try {
    const labelSelector = `${EXCLUDE_LABEL}=true`;
    const found = await client.list(NAMESPACES, { labelSelector, signal });
    if (found.length === 0) return;
    const excluded = [
      ...(spec.excludedNamespaces ?? []),
      ...found.map(({ metadata }) => metadata.name),
    ];
    spec.excludedNamespaces = [...new Set(excluded)];
  } catch (error) {
    assertLasting(error, signal);
    errors.push(`error getting namespace list: ${messageOf(error)}`);
  }
}

/** Adds problems of the namespace lists to `errors`. An empty include list becomes `*`. */
export function namespaceErrors(spec: BackupSpec, errors: string[]): void {
  if (!spec.includedNamespaces?.length) spec.includedNamespaces = ['*'];
  for (const error of namespaceListErrors(spec.includedNamespaces, spec.excludedNamespaces ?? [])) {
    errors.push(`Invalid included/excluded namespace lists: ${error}`);
  }
}

/**
 * Excludes the backup's own types. Velero also removes them from the includes, and an empty list
 * then means all types. Here they stay, and the exclusion has priority.
 */
const without = (excluded: readonly string[], own: readonly string[]): string[] => [
  ...new Set([...excluded, ...own]),
];

/** Adds problems of the resource lists to `errors`, and excludes the backup's own types. */
export function resourceListErrors(spec: BackupSpec, errors: string[]): void {
  const included = spec.includedResources ?? [];
  const excluded = spec.excludedResources ?? [];
  const cluster = [
    spec.includedClusterScopedResources ?? [],
    spec.excludedClusterScopedResources ?? [],
  ] as const;
  const namespaced = [
    spec.includedNamespaceScopedResources ?? [],
    spec.excludedNamespaceScopedResources ?? [],
  ] as const;
  const isOld = usesOldLists(spec);
  if (isOld && [...cluster, ...namespaced].some((list) => list.length > 0)) errors.push(MIXED);
  if (isOld) {
    const wrong = listErrors(included, excluded);
    errors.push(...wrong.map((error) => `Invalid included/excluded resource lists: ${error}`));
    if (wrong.length === 0) {
      spec.excludedResources = without(excluded, [...OWN_NAMESPACED, ...OWN_CLUSTER]);
    }
    return;
  }
  const wrong = scopedListErrors(...cluster);
  errors.push(
    ...wrong.map((error) => `Invalid cluster-scoped included/excluded resource lists: ${error}`),
  );
  if (wrong.length === 0) spec.excludedClusterScopedResources = without(cluster[1], OWN_CLUSTER);
  const alsoWrong = scopedListErrors(...namespaced);
  errors.push(
    ...alsoWrong.map(
      (error) => `Invalid namespace-scoped included/excluded resource lists: ${error}`,
    ),
  );
  if (alsoWrong.length === 0) {
    spec.excludedNamespaceScopedResources = without(namespaced[1], OWN_NAMESPACED);
  }
}
