import { CodedError, isCode, lookup } from '../base/index.ts';
import {
  apiVersionOf,
  type Container,
  DAEMON_SETS,
  type EnvVar,
  excludesVariable,
  isBuiltInMover,
  type KubeClient,
  type KubeObject,
  type NewObject,
  type OwnerReference,
  type Pod,
  type PodSpec,
  type Resource,
  TLS_VOLUME,
  type Toleration,
  type VolumeMount,
  type Volume,
} from '../kube/index.ts';
import type { ExposeConfig, ExposerOptions } from './settings.ts';

/** What hosting pods take over from the node-agent's own pods. */
export interface Template {
  readonly container: Container;
  readonly spec: PodSpec;
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
}

/**
 * Labels, annotations and tolerations that cloud add-ons want (Velero: pkg/util/third_party.go).
 */
const INHERITED_LABEL = 'azure.workload.identity/use';
const INHERITED_ANNOTATION = 'iam.amazonaws.com/role';
const INHERITED_TOLERATIONS = ['kubernetes.azure.com/scalesetpriority', 'CriticalAddonsOnly'];
const POD_GROUP = 'velero.io/exposer-pod-group';
/**
 * Labels that ask service meshes and monitoring agents to add nothing to the pod. The admission
 * policy refuses their containers. `podLabels` and `podAnnotations` of the settings go first.
 */
const UNINJECTED_LABELS = {
  'admission.datadoghq.com/enabled': 'false',
  'kuma.io/sidecar-injection': 'disabled',
  'sidecar.istio.io/inject': 'false',
};
const UNINJECTED_ANNOTATIONS = {
  'consul.hashicorp.com/connect-inject': 'false',
  'dynatrace.com/inject': 'false',
  'linkerd.io/inject': 'disabled',
};
/**
 * On the pod template: the ServiceAccount of data movers, which need less than the agent. Velero's
 * manifests name none: there it is the agent's own.
 */
const SERVICE_ACCOUNT = 'longshore.io/data-mover-service-account';

/** Throws `TEMPLATE_UNUSABLE`. */
export async function loadTemplate(
  client: KubeClient,
  namespace: string,
  daemonSet: string,
): Promise<Template> {
  const prefix = 'error to get inherited pod info from node-agent';
  try {
    const { spec } = await client.get(DAEMON_SETS, { namespace, name: daemonSet });
    const { metadata, spec: pod } = spec.template;
    const [container, ...others] = pod.containers;
    if (!container || others.length > 0) {
      const text = `${prefix}: DaemonSet ${namespace}/${daemonSet} must have exactly one container`;
      throw new CodedError('TEMPLATE_UNUSABLE', text);
    }
    return {
      container,
      spec: pod,
      labels: metadata?.labels ?? {},
      annotations: metadata?.annotations ?? {},
    };
  } catch (cause) {
    if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
    const text = `${prefix}: there is no DaemonSet ${namespace}/${daemonSet}`;
    throw new CodedError('TEMPLATE_UNUSABLE', text, { cause });
  }
}

/**
 * The volume of a hosting pod: that of a claim, or one that the node has mounted for another pod.
 */
export type HostedVolume =
  | { readonly claim: string; readonly readOnly?: boolean }
  | { readonly hostPath: string; readonly node: string; readonly readOnly: boolean };

export interface HostingPodRequest {
  readonly kind: HostedKind;
  readonly owner: KubeObject;
  readonly resource: Resource<KubeObject>;
  /** `spec.datamover`; undefined where there is no such field. */
  readonly dataMover?: string | undefined;
  /** Of its repository, by name. */
  readonly storageLocation: string;
  readonly volume: HostedVolume;
  /**
   * What the volume holds is compared and brought back: a data mover that does not know this
   * refuses to start.
   */
  readonly isInPlace?: boolean;
  readonly isBlock: boolean;
  /** SELinux relabelling of a read-only volume is left out. */
  readonly spcNoRelabeling?: boolean;
  readonly operationTimeout: string;
  readonly affinity?: PodSpec['affinity'];
  readonly selectedNode?: string | undefined;
  readonly cacheClaim?: string | undefined;
  /** RFC 3339: when the volume of a backup was taken, where it is one that stands still. */
  readonly frozenAt?: string | undefined;
  /** Backups only: where the rules for excluded paths come from. */
  readonly excludedBy?: {
    readonly storageClass: string;
    readonly annotations?: string | undefined;
  };
  /** As much as its volume may hold, or holds where that is known; 0 where nothing tells. */
  readonly volumeBytes: number;
}

const CACHE_PATH = '/cachedir';
/** HOME in our image (Dockerfile). */
const IMAGE_HOME = '/scratch';
/**
 * Where somebody else deletes the pod. With none, that of a node that is lost would be gone from
 * the API while its mover still runs. A mover that is told to stop leaves a checkpoint meanwhile.
 */
const GRACE_SECONDS = 30;
/** On hosting pods: {@link HostingPodRequest.volumeBytes}. */
const VOLUME_BYTES = 'longshore.io/volume-bytes';
const POD_UID = 'LONGSHORE_POD_UID';
const FROZEN_AT = 'LONGSHORE_FROZEN_AT';
const EXCLUDES = 'LONGSHORE_EXCLUDES';
const KINDS = {
  'data-upload': { command: 'data-mover', moves: 'backup', group: 'snapshot-exposer' },
  'data-download': { command: 'data-mover', moves: 'restore', group: 'generic-restore-exposer' },
  'pod-volume-backup': { command: 'pod-volume', moves: 'backup', group: 'pod-volume-exposer' },
  'pod-volume-restore': { command: 'pod-volume', moves: 'restore', group: 'pod-volume-exposer' },
} as const;
/**
 * What a hosting pod is for: its label, and the flag that names the CR to its mover, are called so.
 */
export type HostedKind = keyof typeof KINDS;

/**
 * The CR that a hosting pod is for, by its label: Velero's, where Velero's data mover was asked
 * for. Velero's agent writes phases onto whatever CR its own label names, whoever the CR is meant
 * for, so that others get a label of ours.
 */
export function hostedName(pod: Pod, kind: HostedKind): string | undefined {
  const { labels = {} } = pod.metadata;
  return labels[`velero.io/${kind}`] ?? labels[`longshore.io/${kind}`];
}

/** How large the volume is that a hosting pod mounts, in bytes; 0 where its pod does not say. */
export function volumeBytesOf({ metadata }: Pod): number {
  const bytes = Number(metadata.annotations?.[VOLUME_BYTES] ?? 0);
  return bytes > 0 && Number.isFinite(bytes) ? bytes : 0;
}

/**
 * Root reads what no other user may, and gives files back to their owners; nothing else of root's
 * powers is needed: backups read whatever the mode (DAC_READ_SEARCH); restores write into
 * directories of others (DAC_OVERRIDE), give owners (CHOWN), modes and times (FOWNER), and keep
 * set-id bits (FSETID).
 */
const CAPABILITIES = {
  backup: ['DAC_READ_SEARCH'],
  restore: ['CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID'],
} as const;

/**
 * The pod that runs the data mover beside the volume (Velero: pkg/exposer/csi_snapshot.go,
 * generic_restore.go).
 */
export function hostingPod(
  request: HostingPodRequest,
  template: Template,
  options: ExposerOptions,
): NewObject<Pod> {
  const { kind, owner, operationTimeout, volume } = request;
  const { command: verb, moves, group } = KINDS[kind];
  const isOfPod = 'hostPath' in volume;
  const { config } = options;
  const { name, uid } = owner.metadata;
  const { container, spec } = template;
  const path = `/${uid}`;
  const args = [
    `--volume-path=${path}`,
    ...(isOfPod ? [] : [`--volume-mode=${request.isBlock ? 'Block' : 'Filesystem'}`]),
    `--${kind}=${name}`,
    ...(request.isInPlace === true ? ['--in-place'] : []),
    `--resource-timeout=${operationTimeout}`,
    ...(moves === 'restore'
      ? [`--cache-volume-path=${request.cacheClaim === undefined ? '' : CACHE_PATH}`]
      : []),
    ...logFlags(container.args ?? []),
  ];
  const mounts: VolumeMount[] = [];
  if (!request.isBlock) {
    mounts.push({
      name: uid,
      mountPath: path,
      ...(volume.readOnly === true && { readOnly: true }),
      // As Velero mounts it. Only mounts below the volume go when the node unmounts them: the
      // volume itself is held until this pod ends.
      ...(isOfPod && { mountPropagation: 'HostToContainer' }),
    });
  }
  if (request.cacheClaim !== undefined) mounts.push({ name: 'cachedir', mountPath: CACHE_PATH });
  const isOurImage = options.moverImage === undefined;
  const shared = (spec.volumes ?? []).filter(
    ({ name: own, hostPath }) => hostPath === undefined && own !== TLS_VOLUME,
  );
  const sharedMounts = (container.volumeMounts ?? []).filter(({ name: volume }) =>
    shared.some((kept) => kept.name === volume),
  );
  mounts.push(...sharedMounts);
  const env = environmentOf(container.env ?? [], {
    ...options.moverEnvironment,
    ...lookup(options.locationEnvironment, request.storageLocation),
    ...(request.frozenAt !== undefined && { [FROZEN_AT]: request.frozenAt }),
    ...excludesOf(request, config),
  });
  const scratch = isOurImage ? scratchOf(env, mounts) : [];
  const serviceAccountName = template.annotations[SERVICE_ACCOUNT] ?? spec.serviceAccountName;
  const command = options.moverCommand ?? ['/velero'];
  const isPrivileged = isOfPod && config.privilegedFsBackup === true;
  return {
    metadata: {
      name,
      namespace: options.namespace,
      ownerReferences: [ownerReference(request.resource, owner)],
      labels: {
        ...UNINJECTED_LABELS,
        ...(config.podLabels ?? inherited(template.labels, INHERITED_LABEL)),
        [`${isBuiltInMover(request.dataMover) ? 'velero.io' : 'longshore.io'}/${kind}`]: name,
        [POD_GROUP]: group,
      },
      annotations: {
        ...UNINJECTED_ANNOTATIONS,
        ...(config.podAnnotations ?? inherited(template.annotations, INHERITED_ANNOTATION)),
        [VOLUME_BYTES]: String(request.volumeBytes),
      },
    },
    spec: {
      restartPolicy: 'Never',
      terminationGracePeriodSeconds: GRACE_SECONDS,
      os: { name: 'linux' },
      ...(request.selectedNode !== undefined && {
        nodeSelector: { 'kubernetes.io/hostname': request.selectedNode },
      }),
      // The pod whose volume it is runs there: no scheduler is asked.
      ...(isOfPod
        ? { nodeName: volume.node }
        : { topologySpreadConstraints: [spreadOver(group)], affinity: request.affinity ?? {} }),
      ...(serviceAccountName !== undefined && { serviceAccountName }),
      ...pick(spec, ['dnsPolicy', 'dnsConfig', 'imagePullSecrets']),
      ...(config.priorityClassName !== undefined && {
        priorityClassName: config.priorityClassName,
      }),
      // The agent runs there, with what it tolerates.
      tolerations: isOfPod
        ? (spec.tolerations ?? [])
        : inheritedTolerations(spec.tolerations ?? []),
      securityContext: {
        runAsUser: 0,
        seccompProfile: { type: 'RuntimeDefault' },
        ...(request.spcNoRelabeling === true && { seLinuxOptions: { type: 'spc_t' } }),
      },
      volumes: [
        ...volumesOf(request, shared),
        ...scratch.map(({ name: volume }) => ({ name: volume, emptyDir: {} })),
      ],
      containers: [
        {
          name: uid,
          ...imageOf(container, options),
          command: [...command, verb, moves],
          args,
          env,
          ...pick(container, ['envFrom']),
          volumeMounts: [...mounts, ...scratch],
          ...(request.isBlock && { volumeDevices: [{ name: uid, devicePath: path }] }),
          resources: config.podResources,
          securityContext: {
            ...(isOfPod && { privileged: isPrivileged }),
            allowPrivilegeEscalation: isPrivileged,
            // Another image may write where it likes.
            ...(isOurImage && { readOnlyRootFilesystem: true }),
            capabilities: { drop: ['ALL'], add: [...CAPABILITIES[moves]] },
          },
        },
      ],
    },
  };
}

function excludesOf(
  { excludedBy }: HostingPodRequest,
  { excludePaths: { all, storageClasses, isWithoutAnnotations } = {} }: ExposeConfig,
): Record<string, string> {
  if (!excludedBy) return {};
  const storageClass = lookup(storageClasses, excludedBy.storageClass);
  const { annotations } = excludedBy;
  const text = excludesVariable({
    ...(all !== undefined && { settings: all }),
    ...(storageClass !== undefined && { storageClass }),
    ...(annotations !== undefined && { annotations }),
    ...(isWithoutAnnotations === true && { isWithoutAnnotations }),
  });
  return text === undefined ? {} : { [EXCLUDES]: text };
}

/**
 * The image is on the node already, since the agent runs there. During a rolling update it may not
 * be: the template names the new image before the node's agent has it.
 */
const imageOf = (
  container: Container,
  { moverImage }: ExposerOptions,
): Pick<Container, 'image' | 'imagePullPolicy'> => ({
  ...(moverImage === undefined ? pick(container, ['image']) : { image: moverImage }),
  imagePullPolicy: 'IfNotPresent',
});

/**
 * Where our image writes, which nothing else is mounted to: its temporary files, and its home with
 * the caches.
 */
function scratchOf(env: readonly EnvVar[], mounts: readonly VolumeMount[]): VolumeMount[] {
  const valueOf = (key: string): string | undefined => env.find(({ name }) => name === key)?.value;
  const wanted = new Set([valueOf('TMPDIR') ?? '/tmp', valueOf('HOME') ?? IMAGE_HOME]);
  return [...wanted]
    .filter((path) => path.startsWith('/') && !mounts.some((mount) => isWithin(path, mount)))
    .map((mountPath, i) => ({ name: `longshore-scratch-${i}`, mountPath }));
}

const isWithin = (path: string, { mountPath }: VolumeMount): boolean =>
  `${path}/`.startsWith(`${mountPath.replace(/\/+$/, '')}/`);

/**
 * Directories of the node are the agent's affair: a mover needs none, and a tenant's data must not
 * meet them.
 */
function volumesOf(request: HostingPodRequest, inheritedVolumes: readonly Volume[]): Volume[] {
  const { volume, cacheClaim, owner } = request;
  const volumes: Volume[] = [{ name: owner.metadata.uid, ...sourceOf(volume) }];
  if (cacheClaim !== undefined) {
    volumes.push({ name: 'cachedir', persistentVolumeClaim: { claimName: cacheClaim } });
  }
  return [...volumes, ...inheritedVolumes];
}

function sourceOf(volume: HostedVolume): Omit<Volume, 'name'> {
  // A directory that is not there must not be made: it would be an empty volume.
  if ('hostPath' in volume) return { hostPath: { path: volume.hostPath, type: 'Directory' } };
  const { claim, readOnly } = volume;
  return {
    persistentVolumeClaim: { claimName: claim, ...(readOnly === true && { readOnly: true }) },
  };
}

const spreadOver = (group: string): object => ({
  maxSkew: 1,
  topologyKey: 'kubernetes.io/hostname',
  whenUnsatisfiable: 'ScheduleAnyway',
  labelSelector: { matchLabels: { [POD_GROUP]: group } },
});

function environmentOf(env: readonly EnvVar[], more: Readonly<Record<string, string>>): EnvVar[] {
  const added = Object.entries(more).map(([name, value]) => ({ name, value }));
  const own = { name: POD_UID, valueFrom: { fieldRef: { fieldPath: 'metadata.uid' } } };
  const inherited = env.filter(({ name }) => lookup(more, name) === undefined && name !== POD_UID);
  return [...inherited, ...added, own];
}

/** The agent's `--log-level` and `--log-format`, in both spellings. */
function logFlags(args: readonly string[]): string[] {
  const found = (flag: string): string[] =>
    args.flatMap((text, i) => {
      if (text === flag) return [text, args[i + 1] ?? ''];
      return text.startsWith(`${flag}=`) ? [text] : [];
    });
  return [...found('--log-format'), ...found('--log-level')];
}

function inherited(from: Readonly<Record<string, string>>, key: string): Record<string, string> {
  const value = lookup(from, key);
  return value === undefined ? {} : { [key]: value };
}

const inheritedTolerations = (all: readonly Toleration[]): Toleration[] =>
  INHERITED_TOLERATIONS.flatMap((key) => all.find((toleration) => toleration.key === key) ?? []);

function pick<T extends object, K extends keyof T>(from: T, keys: readonly K[]): Pick<T, K> {
  return Object.fromEntries(
    keys.filter((key) => from[key] !== undefined).map((key) => [key, from[key]]),
  ) as Pick<T, K>;
}

export function ownerReference(
  resource: Resource<KubeObject>,
  { metadata: { name, uid } }: KubeObject,
): OwnerReference {
  return { apiVersion: apiVersionOf(resource), kind: resource.kind, name, uid, controller: true };
}
