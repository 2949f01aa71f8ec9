import type { LabelSelector, LabelSelectorRequirement } from '../../base/index.ts';

/** Kubernetes' own objects, with the fields read here. Unknown fields pass through untouched. */

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
}

export interface Metadata {
  name: string;
  namespace?: string;
  generateName?: string;
  uid: string;
  resourceVersion: string;
  generation?: number;
  creationTimestamp: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
  managedFields?: unknown;
}

/** Common to all objects of the API. */
export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: Metadata;
}

/** An object before it is created. Kinds without a type of their own accept any `spec`. */
export type NewObject<T extends KubeObject> = Omit<T, 'metadata'> & {
  metadata: Partial<Metadata>;
} & (KubeObject extends T ? { spec?: unknown; status?: unknown } : unknown);

export interface EnvVar {
  name: string;
  value?: string;
  valueFrom?: { fieldRef?: { fieldPath: string } } & Record<string, unknown>;
}

export interface VolumeMount {
  name: string;
  mountPath: string;
  readOnly?: boolean;
  mountPropagation?: string;
}

export interface Container {
  name: string;
  image?: string;
  imagePullPolicy?: string;
  command?: string[];
  args?: string[];
  env?: EnvVar[];
  envFrom?: unknown[];
  /** Init containers only: `Always` makes a native sidecar. */
  restartPolicy?: string;
  volumeMounts?: VolumeMount[];
  volumeDevices?: { name: string; devicePath: string }[];
  resources?: object;
  securityContext?: object;
  terminationMessagePath?: string;
  terminationMessagePolicy?: string;
}

export interface Volume {
  name: string;
  persistentVolumeClaim?: { claimName: string; readOnly?: boolean };
  ephemeral?: object;
  [source: string]: unknown;
}

export interface Toleration {
  key?: string;
  operator?: string;
  value?: string;
  effect?: string;
}

export interface NodeSelectorTerm {
  matchExpressions?: LabelSelectorRequirement[];
  matchFields?: LabelSelectorRequirement[];
}

export interface PodSpec {
  containers: Container[];
  initContainers?: Container[];
  volumes?: Volume[];
  nodeName?: string;
  nodeSelector?: Record<string, string>;
  os?: { name: string };
  serviceAccountName?: string;
  dnsPolicy?: string;
  dnsConfig?: object;
  imagePullSecrets?: { name: string }[];
  restartPolicy?: string;
  terminationGracePeriodSeconds?: number;
  tolerations?: Toleration[];
  topologySpreadConstraints?: object[];
  affinity?: {
    nodeAffinity?: {
      requiredDuringSchedulingIgnoredDuringExecution?: { nodeSelectorTerms: NodeSelectorTerm[] };
    };
  };
  priorityClassName?: string;
  securityContext?: object;
  serviceAccount?: string;
}

export interface ContainerStatus {
  restartCount?: number;
  name: string;
  ready?: boolean;
  state?: {
    waiting?: { reason?: string; message?: string };
    running?: { startedAt?: string };
    terminated?: { exitCode: number; reason?: string; message?: string; finishedAt?: string };
  };
}

export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
  lastTransitionTime?: string;
}

export interface Pod extends KubeObject {
  spec: PodSpec;
  status?: {
    phase?: 'Pending' | 'Running' | 'Succeeded' | 'Failed' | 'Unknown';
    message?: string;
    reason?: string;
    conditions?: Condition[];
    containerStatuses?: ContainerStatus[];
    initContainerStatuses?: ContainerStatus[];
    startTime?: string;
  };
}

export interface PersistentVolumeClaim extends KubeObject {
  spec: {
    accessModes?: string[];
    storageClassName?: string;
    volumeMode?: string;
    volumeName?: string;
    selector?: LabelSelector;
    dataSource?: { apiGroup?: string; kind: string; name: string };
    dataSourceRef?: object;
    resources?: { requests?: Record<string, string>; limits?: Record<string, string> };
  };
  status?: { phase?: string };
}

export interface PersistentVolume extends KubeObject {
  spec: {
    persistentVolumeReclaimPolicy?: string;
    storageClassName?: string;
    claimRef?: ObjectReference;
    nodeAffinity?: { required?: { nodeSelectorTerms: NodeSelectorTerm[] } };
    csi?: { driver: string; volumeHandle: string; volumeAttributes?: Record<string, string> };
    nfs?: { server: string; path: string };
    capacity?: Record<string, string>;
    [source: string]: unknown;
  };
  status?: { phase?: string; reason?: string; message?: string };
}

export interface VolumeSnapshot extends KubeObject {
  spec: {
    source: { persistentVolumeClaimName?: string; volumeSnapshotContentName?: string };
    volumeSnapshotClassName?: string;
  };
  status?: {
    boundVolumeSnapshotContentName?: string;
    readyToUse?: boolean;
    restoreSize?: string;
    volumeGroupSnapshotName?: string;
    error?: { message?: string; time?: string };
  };
}

export interface VolumeSnapshotContent extends KubeObject {
  spec: {
    deletionPolicy: string;
    driver: string;
    source: { volumeHandle?: string; snapshotHandle?: string };
    sourceVolumeMode?: string;
    volumeSnapshotClassName?: string;
    volumeSnapshotRef: {
      apiVersion?: string;
      kind?: string;
      namespace?: string;
      name?: string;
      uid?: string;
      resourceVersion?: string;
    };
  };
  status?: {
    readyToUse?: boolean;
    snapshotHandle?: string;
    /** Bytes. */
    restoreSize?: number;
    /** Nanoseconds since 1970, as the driver reports it. */
    creationTime?: number;
    volumeGroupSnapshotHandle?: string;
    error?: { message?: string };
  };
}

export interface VolumeSnapshotClass extends KubeObject {
  driver: string;
  deletionPolicy: 'Delete' | 'Retain';
}

/** groupsnapshot.storage.k8s.io/v1beta2: snapshots of several volumes at one moment. */
export interface VolumeGroupSnapshot extends KubeObject {
  spec: {
    source: { selector?: { matchLabels?: Record<string, string> } };
    volumeGroupSnapshotClassName?: string;
  };
  status?: {
    boundVolumeGroupSnapshotContentName?: string;
    readyToUse?: boolean;
    error?: { message?: string };
  };
}

export interface VolumeGroupSnapshotContent extends KubeObject {
  spec: {
    deletionPolicy: 'Delete' | 'Retain';
    driver: string;
    /** Volume handles, for a new group snapshot. */
    source?: {
      volumeHandles?: string[];
      /** For an existing group snapshot. Immutable. */
      groupSnapshotHandles?: { volumeGroupSnapshotHandle: string; volumeSnapshotHandles: string[] };
    };
    volumeGroupSnapshotRef: { namespace?: string; name?: string; uid?: string };
  };
  status?: {
    volumeGroupSnapshotHandle?: string;
    /** Set for a new group snapshot. */
    volumeSnapshotInfoList?: { volumeHandle?: string; snapshotHandle?: string }[];
    readyToUse?: boolean;
    error?: { message?: string };
  };
}

export interface VolumeGroupSnapshotClass extends KubeObject {
  driver: string;
  deletionPolicy: 'Delete' | 'Retain';
}

export interface StorageClass extends KubeObject {
  provisioner: string;
  volumeBindingMode?: string;
  reclaimPolicy?: string;
  parameters?: Record<string, string>;
}

export interface VolumeAttachment extends KubeObject {
  spec: { nodeName: string; source: { persistentVolumeName?: string } };
}

export interface DaemonSet extends KubeObject {
  spec: { template: { metadata?: Partial<Metadata>; spec: PodSpec } };
}

export interface Deployment extends KubeObject {
  spec: { template: { metadata?: Partial<Metadata>; spec: PodSpec } };
}

export interface Job extends KubeObject {
  spec: {
    backoffLimit?: number;
    podReplacementPolicy?: string;
    template: { metadata?: Partial<Metadata>; spec: PodSpec };
  };
  status?: {
    active?: number;
    /** Active pods that are ready. */
    ready?: number;
    succeeded?: number;
    failed?: number;
    startTime?: string;
    completionTime?: string;
    conditions?: Condition[];
  };
}

/** coordination.k8s.io/v1: the leader, and how long its leadership lasts. */
export interface Lease extends KubeObject {
  spec?: {
    holderIdentity?: string | null;
    leaseDurationSeconds?: number | null;
    /** RFC 3339 in microseconds, for all times here. */
    acquireTime?: string | null;
    renewTime?: string | null;
    leaseTransitions?: number | null;
  };
}

export interface Node extends KubeObject {
  spec?: { taints?: { key: string; value?: string; effect: string }[] };
  status?: { conditions?: Condition[] };
}

export interface Secret extends KubeObject {
  /** Values in base64. */
  data?: Record<string, string>;
}

export interface ConfigMap extends KubeObject {
  data?: Record<string, string>;
  /** Values in base64. */
  binaryData?: Record<string, string>;
}

export interface ObjectReference {
  apiVersion?: string;
  kind?: string;
  namespace?: string;
  name?: string;
  uid?: string;
  resourceVersion?: string;
}

export interface Event extends KubeObject {
  involvedObject: ObjectReference;
  type?: string;
  reason?: string;
  message?: string;
  count?: number;
  firstTimestamp?: string | null;
  lastTimestamp?: string | null;
  source?: { component?: string; host?: string };
  reportingComponent?: string;
  reportingInstance?: string;
}

export type PriorityClass = KubeObject;

export interface ClusterRoleBinding extends KubeObject {
  roleRef?: { kind?: string; name?: string };
  subjects?: { kind?: string; name?: string; namespace?: string }[] | null;
}

/** A ValidatingAdmissionPolicyBinding. */
export interface PolicyBinding extends KubeObject {
  spec?: { policyName?: string; paramRef?: { namespace?: string } | null };
}
