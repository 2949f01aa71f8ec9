import { type LabelSelectorRequirement, requirementsOf } from '../base/index.ts';
import type { NodeSelectorTerm, PodSpec } from '../kube/index.ts';
import type { LoadAffinity } from './settings.ts';

const NOT_WINDOWS: LabelSelectorRequirement = {
  key: 'kubernetes.io/os',
  operator: 'NotIn',
  values: ['windows'],
};

/** The entry for a storage class, or the entry for all classes. */
export function affinityFor(
  list: readonly LoadAffinity[],
  storageClass: string,
): LoadAffinity | undefined {
  return (
    list.find((entry) => entry.storageClass === storageClass) ??
    list.find((entry) => (entry.storageClass ?? '') === '')
  );
}

/**
 * Where a hosting pod may run: as configured, on no Windows node, and within the topology of the
 * volume. Each term of the topology gets all conditions (Velero: pkg/util/kube/pod.go,
 * ToSystemAffinity).
 */
export function hostingAffinity(
  configured: LoadAffinity | undefined,
  topology: readonly NodeSelectorTerm[] = [],
  excludedNodes: readonly string[] = [],
): PodSpec['affinity'] {
  const conditions: LabelSelectorRequirement[] = [
    ...requirementsOf(configured?.nodeSelector ?? {}),
    NOT_WINDOWS,
  ];
  if (excludedNodes.length > 0) {
    conditions.push({
      key: 'kubernetes.io/hostname',
      operator: 'NotIn',
      values: [...excludedNodes],
    });
  }
  const terms = topology.length > 0 ? topology : [{}];
  return {
    nodeAffinity: {
      requiredDuringSchedulingIgnoredDuringExecution: {
        nodeSelectorTerms: terms.map((term) => ({
          ...term,
          matchExpressions: [...(term.matchExpressions ?? []), ...conditions],
        })),
      },
    },
  };
}
