import type { KubeObject, LabelSelector } from '../kube/index.ts';

/** The parts of Velero's Restore (velero.io/v1, pkg/apis/velero/v1/restore_types.go) that are looked at here. */
export interface Restore extends KubeObject {
  spec: RestoreSpec;
}

export interface RestoreSpec {
  backupName?: string;
  scheduleName?: string;
  includedNamespaces?: readonly string[] | null | undefined;
  excludedNamespaces?: readonly string[] | null | undefined;
  includedResources?: readonly string[] | null | undefined;
  excludedResources?: readonly string[] | null | undefined;
  includeClusterResources?: boolean | null | undefined;
  labelSelector?: LabelSelector | null | undefined;
  orLabelSelectors?: readonly LabelSelector[] | null | undefined;
  /** From the namespaces of the backup to those of the cluster. */
  namespaceMapping?: Readonly<Record<string, string>> | null;
  restorePVs?: boolean | null;
  preserveNodePorts?: boolean | null;
  /** `none`, `update`, or nothing. */
  existingResourcePolicy?: string;
  /** A duration as Go writes it, such as `4h0m0s`. */
  itemOperationTimeout?: string;
}

/** Where what was in a namespace of the backup is restored to. */
export const targetNamespace = (namespace: string, { spec }: Restore): string =>
  spec.namespaceMapping?.[namespace] ?? namespace;
