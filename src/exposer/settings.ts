import type { Clock, LabelSelector, Logger } from '../base/index.ts';
import type { KubeClient } from '../kube/index.ts';

/** What hosting pods may use: only what is set. Quantities as Kubernetes writes them. */
export interface PodResources {
  readonly requests?: Readonly<Record<string, string>>;
  readonly limits?: Readonly<Record<string, string>>;
}

export interface LoadAffinity {
  readonly nodeSelector: LabelSelector;
  readonly storageClass?: string | undefined;
}

export interface BackupPvcConfig {
  readonly storageClass?: string | undefined;
  readonly readOnly?: boolean | undefined;
  readonly spcNoRelabeling?: boolean | undefined;
  readonly annotations?: Readonly<Record<string, string>> | undefined;
}

export interface CacheVolumeConfig {
  readonly storageClass: string;
  /** Restores of less than this keep their cache in the pod. */
  readonly residentThresholdBytes: number;
  readonly limitBytes: number;
}

/** The node-agent's settings as far as exposing goes: Velero's node-agent ConfigMap, checked. */
export interface ExposeConfig {
  readonly loadAffinity: readonly LoadAffinity[];
  /** By storage class of the source. */
  readonly backupPvc: Readonly<Record<string, BackupPvcConfig>>;
  readonly ignoreDelayBinding: boolean;
  readonly podResources: PodResources;
  readonly priorityClassName?: string | undefined;
  readonly podAnnotations?: Readonly<Record<string, string>> | undefined;
  readonly podLabels?: Readonly<Record<string, string>> | undefined;
  readonly cacheVolume?: CacheVolumeConfig | undefined;
  /** Hosting pods of volumes of other pods are privileged, as SELinux may ask for. */
  readonly privilegedFsBackup?: boolean | undefined;
  readonly excludePaths?: ExcludeConfig | undefined;
}

/** Rules for paths that stay out of backups, one on each line. */
export interface ExcludeConfig {
  /** For all volumes. */
  readonly all?: string | undefined;
  /** For all volumes of a storage class. */
  readonly storageClasses?: Readonly<Record<string, string>> | undefined;
  readonly isWithoutAnnotations?: boolean | undefined;
}

export interface ExposerOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** The namespace that Velero is in. */
  readonly namespace: string;
  /** Hosting pods are made after the pod template of this DaemonSet. */
  readonly daemonSet: string;
  /** In place of the DaemonSet's image and of `/velero`. */
  readonly moverImage?: string | undefined;
  readonly moverCommand?: readonly string[] | undefined;
  /** Environment of the mover beside what the DaemonSet's container has. */
  readonly moverEnvironment?: Readonly<Record<string, string>> | undefined;
  /** By name of the backup storage location, what is different there. */
  readonly locationEnvironment?: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly prepareTimeoutMs: number;
  readonly config: ExposeConfig;
}

/** Of one volume that is being made available. */
export interface ExposeContext {
  readonly operationTimeoutMs: number;
  readonly signal: AbortSignal;
  /** Called before the first object is made, or when one is found. */
  readonly onMake?: () => void;
}
