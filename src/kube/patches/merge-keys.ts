import { lookup } from '../../base/index.ts';
/** How one field of a type is merged, if it has a special rule. */
export interface FieldRule {
  /** Lists only: elements are merged, objects by the value of `key`. */
  readonly isMerged?: boolean;
  readonly key?: string;
  /** Objects only: the new object replaces the old one. */
  readonly isReplaced?: boolean;
  /** Rules of the fields inside. */
  readonly type?: TypeRules;
}

export interface TypeRules {
  readonly [field: string]: FieldRule;
}

export const NO_RULES: TypeRules = Object.freeze({});

/** Merged by a key, with rules for the elements. */
const by = (key: string, type?: TypeRules): FieldRule => ({
  isMerged: true,
  key,
  ...(type && { type }),
});
/** A list of plain values that is merged. */
const MERGED: FieldRule = { isMerged: true };
const REPLACED: FieldRule = { isReplaced: true };
const inside = (type: TypeRules): FieldRule => ({ type });

/*
 * The struct tags patchStrategy and patchMergeKey of k8s.io/api v0.33. A test compares them with
 * the output of the Go program restore-step-answers. If versions of a kind differ, the newest
 * counts: only PodDisruptionBudget does.
 */
const META: TypeRules = { finalizers: MERGED, ownerReferences: by('uid') };
const CONDITIONS: TypeRules = { conditions: by('type') };
const CONTAINER: TypeRules = {
  env: by('name'),
  ports: by('containerPort'),
  volumeDevices: by('devicePath'),
  volumeMounts: by('mountPath'),
};
const CONTAINER_STATUS: TypeRules = {
  allocatedResourcesStatus: by('name'),
  volumeMounts: by('mountPath'),
};
const VOLUME: TypeRules = {
  ephemeral: inside({ volumeClaimTemplate: inside({ metadata: inside(META) }) }),
};
const POD_SPEC: TypeRules = {
  containers: by('name', CONTAINER),
  ephemeralContainers: by('name', CONTAINER),
  hostAliases: by('ip'),
  imagePullSecrets: by('name'),
  initContainers: by('name', CONTAINER),
  resourceClaims: by('name'),
  schedulingGates: by('name'),
  topologySpreadConstraints: by('topologyKey'),
  volumes: by('name', VOLUME),
};
const POD_STATUS: TypeRules = {
  ...CONDITIONS,
  containerStatuses: inside(CONTAINER_STATUS),
  ephemeralContainerStatuses: inside(CONTAINER_STATUS),
  hostIPs: by('ip'),
  initContainerStatuses: inside(CONTAINER_STATUS),
  podIPs: by('ip'),
  resourceClaimStatuses: by('name'),
};
const TEMPLATE: TypeRules = {
  template: inside({ metadata: inside(META), spec: inside(POD_SPEC) }),
};
const JOB: TypeRules = { spec: inside(TEMPLATE), status: inside(CONDITIONS) };
const CLAIM: TypeRules = { metadata: inside(META), status: inside(CONDITIONS) };
const WEBHOOKS: TypeRules = { webhooks: by('name', { matchConditions: by('name') }) };
const WITH_PODS: TypeRules = { spec: inside(TEMPLATE), status: inside(CONDITIONS) };
const STATUS: TypeRules = { status: inside(CONDITIONS) };

/** Rules of the kinds beside their metadata. */
const KINDS: Readonly<Record<string, TypeRules>> = {
  ComponentStatus: CONDITIONS,
  CronJob: {
    spec: inside({ jobTemplate: inside({ metadata: inside(META), spec: inside(TEMPLATE) }) }),
  },
  CSINode: { spec: inside({ drivers: by('name') }) },
  DaemonSet: WITH_PODS,
  Deployment: WITH_PODS,
  FlowSchema: STATUS,
  HorizontalPodAutoscaler: STATUS,
  Job: JOB,
  MutatingAdmissionPolicy: { spec: inside({ matchConditions: by('name') }) },
  MutatingWebhookConfiguration: WEBHOOKS,
  Namespace: STATUS,
  Node: {
    spec: inside({ podCIDRs: MERGED }),
    status: inside({ addresses: by('type'), ...CONDITIONS }),
  },
  PersistentVolumeClaim: STATUS,
  Pod: { spec: inside(POD_SPEC), status: inside(POD_STATUS) },
  PodDisruptionBudget: { spec: inside({ selector: REPLACED }), ...STATUS },
  PodStatusResult: { status: inside(POD_STATUS) },
  PodTemplate: TEMPLATE,
  PriorityLevelConfiguration: STATUS,
  ReplicaSet: WITH_PODS,
  ReplicationController: WITH_PODS,
  ResourceClaim: { status: inside({ reservedFor: by('uid') }) },
  ResourceClaimTemplate: { spec: inside({ metadata: inside(META) }) },
  Service: { spec: inside({ ports: by('port') }), ...STATUS },
  ServiceAccount: { secrets: by('name') },
  ServiceCIDR: STATUS,
  StatefulSet: {
    spec: inside({ ...TEMPLATE, volumeClaimTemplates: inside(CLAIM) }),
    status: inside(CONDITIONS),
  },
  StorageVersionMigration: STATUS,
  ValidatingAdmissionPolicy: {
    spec: inside({ matchConditions: by('name'), variables: by('name') }),
  },
  ValidatingWebhookConfiguration: WEBHOOKS,
};

/** All kinds with Go types, by group. */
const GROUPS: Readonly<Record<string, string>> = {
  '': 'Binding ComponentStatus ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod PodStatusResult PodTemplate RangeAllocation ReplicationController ResourceQuota Secret Service ServiceAccount',
  'admissionregistration.k8s.io':
    'MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration',
  apps: 'ControllerRevision DaemonSet Deployment ReplicaSet Scale StatefulSet',
  'authentication.k8s.io': 'SelfSubjectReview TokenRequest TokenReview',
  'authorization.k8s.io':
    'LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview',
  autoscaling: 'HorizontalPodAutoscaler Scale',
  batch: 'CronJob Job',
  'certificates.k8s.io': 'CertificateSigningRequest ClusterTrustBundle',
  'coordination.k8s.io': 'Lease LeaseCandidate',
  'discovery.k8s.io': 'EndpointSlice',
  'events.k8s.io': 'Event',
  extensions: 'DaemonSet Deployment Ingress NetworkPolicy ReplicaSet Scale',
  'flowcontrol.apiserver.k8s.io': 'FlowSchema PriorityLevelConfiguration',
  'internal.apiserver.k8s.io': 'StorageVersion',
  'networking.k8s.io': 'IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR',
  'node.k8s.io': 'RuntimeClass',
  policy: 'Eviction PodDisruptionBudget',
  'rbac.authorization.k8s.io': 'ClusterRole ClusterRoleBinding Role RoleBinding',
  'resource.k8s.io':
    'DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourceSlice',
  'scheduling.k8s.io': 'PriorityClass',
  'storage.k8s.io':
    'CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass',
  'storagemigration.k8s.io': 'StorageVersionMigration',
};

/** The merge rules of a kind; undefined if the kind is not Kubernetes' own. */
export function typeOfKind(apiVersion: string, kind: string): TypeRules | undefined {
  const group = apiVersion.includes('/') ? apiVersion.slice(0, apiVersion.indexOf('/')) : '';
  const kinds = lookup(GROUPS, group);
  if (kinds?.split(' ').includes(kind) !== true) return undefined;
  return { metadata: inside(META), ...lookup(KINDS, kind) };
}
