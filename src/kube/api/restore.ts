import { type LabelSelector, lookup } from '../../base/index.ts';
import type { KubeObject } from './core.ts';

/** Velero's Restore (pkg/apis/velero/v1/restore_types.go), with the fields read here. */
export interface Restore extends KubeObject {
  spec: RestoreSpec;
  status?: RestoreStatus;
}

export interface RestoreStatus {
  phase?: string;
  validationErrors?: string[];
}

/** An object of the Restore's own namespace. */
export interface LocalReference {
  readonly kind: string;
  readonly name: string;
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
  /** Resources whose status is restored. The default is none. */
  restoreStatus?: {
    readonly includedResources?: readonly string[] | null;
    readonly excludedResources?: readonly string[] | null;
  } | null;
  preserveNodePorts?: boolean | null;
  /** `none`, `update`, or empty. */
  existingResourcePolicy?: string | null;
  /** Existing volume data: `none`, `full`, `incremental`, or empty. */
  existingVolumeDataPolicy?: string | null;
  uploaderConfig?: {
    readonly writeSparseFiles?: boolean | null;
    readonly parallelFilesDownload?: number;
    /** Only for volumes that are restored in place. */
    readonly deleteExtraFiles?: boolean | null;
  } | null;
  /** A duration as Go writes it, such as `4h0m0s`. */
  itemOperationTimeout?: string;
  resourcePolicy?: LocalReference | null;
  resourceModifier?: LocalReference | null;
  /** Do not use the server's default modifiers; Velero 1.19. */
  skipDefaultResourceModifier?: boolean | null;
  hooks?: { readonly resources?: readonly RestoreHookSpec[] | null } | null;
}

export interface RestoreHookSpec {
  readonly name?: string;
  readonly includedNamespaces?: readonly string[] | null;
  readonly excludedNamespaces?: readonly string[] | null;
  readonly labelSelector?: LabelSelector | null;
  readonly postHooks?: readonly RestoreHook[] | null;
}

export interface RestoreHook {
  readonly init?: {
    /** Kubernetes containers, with all their fields. */
    readonly initContainers?: readonly unknown[] | null;
    readonly timeout?: string;
  } | null;
  readonly exec?: {
    readonly container?: string;
    readonly command?: readonly string[] | null;
    readonly onError?: string;
    readonly execTimeout?: string;
    readonly waitTimeout?: string;
    readonly waitForReady?: boolean | null;
  } | null;
}

/** The namespace into which a namespace of the backup is restored. */
export const targetNamespace = (namespace: string, { spec }: Restore): string =>
  lookup(spec.namespaceMapping, namespace) ?? namespace;
