import type { Clock, LabelSelector, Logger } from '../base/index.ts';
import type { KubeClient } from '../kube/index.ts';

/** Resources of hosting pods, as Kubernetes quantities. Only fields that are set. */
export interface PodResources {
  readonly requests?: Readonly<Record<string, string>>;
  readonly limits?: Readonly<Record<string, string>>;
}

export interface LoadAffinity {
  readonly nodeSelector: LabelSelector;
  readonly storageClass?: string | undefined;
}

/** Secrets and ConfigMaps that a CSI driver reads in the namespace of a PVC. */
export interface DriverSecretNames {
  readonly secretNames?: readonly string[] | undefined;
  readonly configMapNames?: readonly string[] | undefined;
}

export interface BackupPvcConfig extends DriverSecretNames {
  readonly storageClass?: string | undefined;
  readonly readOnly?: boolean | undefined;
  /** The kubelet then sets SELinux labels with a mount option, and not file by file. */
  readonly readWriteOncePod?: boolean | undefined;
  readonly spcNoRelabeling?: boolean | undefined;
  readonly annotations?: Readonly<Record<string, string>> | undefined;
}

export interface CacheVolumeConfig {
  readonly storageClass: string;
  /** Smaller restores keep their cache in the pod. */
  readonly residentThresholdBytes: number;
  readonly limitBytes: number;
}

/** Settings for exposing, from Velero's node-agent ConfigMap, validated. */
export interface ExposeConfig {
  readonly loadAffinity: readonly LoadAffinity[];
  /** Keys are storage classes of the source. */
  readonly backupPvc: Readonly<Record<string, BackupPvcConfig>>;
  readonly ignoreDelayBinding: boolean;
  readonly restoreSecrets?: DriverSecretNames | undefined;
  readonly podResources: PodResources;
  readonly priorityClassName?: string | undefined;
  readonly podAnnotations?: Readonly<Record<string, string>> | undefined;
  readonly podLabels?: Readonly<Record<string, string>> | undefined;
  readonly cacheVolume?: CacheVolumeConfig | undefined;
  /** Run hosting pods of pod volumes privileged, which SELinux may require. */
  readonly privilegedFsBackup?: boolean | undefined;
  readonly excludePaths?: ExcludeConfig | undefined;
}

/** Rules for excluded paths, one on each line. */
export interface ExcludeConfig {
  readonly all?: string | undefined;
  /** For all volumes of a storage class. */
  readonly storageClasses?: Readonly<Record<string, string>> | undefined;
  readonly isWithoutAnnotations?: boolean | undefined;
}

export interface ExposerOptions {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Velero's namespace. */
  readonly namespace: string;
  /** Hosting pods are created from the pod template of this DaemonSet. */
  readonly daemonSet: string;
  /** Replaces the DaemonSet's image, and the command `/velero`. */
  readonly moverImage?: string | undefined;
  readonly moverCommand?: readonly string[] | undefined;
  /** Environment of the mover, added to that of the DaemonSet's container. */
  readonly moverEnvironment?: Readonly<Record<string, string>> | undefined;
  /** Differences by name of the BackupStorageLocation. */
  readonly locationEnvironment?: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly prepareTimeoutMs: number;
  readonly config: ExposeConfig;
}

export interface ExposeContext {
  readonly operationTimeoutMs: number;
  readonly signal: AbortSignal;
  /** Called before the first object is created, or when an existing object is found. */
  readonly onMake?: () => void;
}
