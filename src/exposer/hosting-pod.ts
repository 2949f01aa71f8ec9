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

/** Parts of the node-agent's pod template that hosting pods inherit. */
export interface Template {
  readonly container: Container;
  readonly spec: PodSpec;
  readonly labels: Readonly<Record<string, string>>;
  readonly annotations: Readonly<Record<string, string>>;
}

/** Labels, annotations and tolerations of cloud add-ons (Velero: pkg/util/third_party.go). */
const INHERITED_LABEL = 'azure.workload.identity/use';
const INHERITED_ANNOTATION = 'iam.amazonaws.com/role';
const INHERITED_TOLERATIONS = ['kubernetes.azure.com/scalesetpriority', 'CriticalAddonsOnly'];
const POD_GROUP = 'velero.io/exposer-pod-group';
/**
 * Labels that tell service meshes and monitoring agents to inject nothing into the pod. The
 * admission policy refuses their containers. `podLabels` and `podAnnotations` of the settings take
 * precedence.
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
 * On the pod template: the ServiceAccount of data movers, which need fewer rights than the agent.
 * Velero's manifests name none, so the agent's own is used there.
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

/** The volume of a hosting pod: a PVC's, or a directory that the node mounted for another pod. */
export type HostedVolume =
  | { readonly claim: string; readonly readOnly?: boolean }
  | { readonly hostPath: string; readonly node: string; readonly readOnly: boolean };

export interface HostingPodRequest {
  readonly kind: HostedKind;
  readonly owner: KubeObject;
  readonly resource: Resource<KubeObject>;
  /** `spec.datamover`; undefined if the CR has no such field. */
  readonly dataMover?: string | undefined;
  /** Name of the repository's BackupStorageLocation. */
  readonly storageLocation: string;
  readonly volume: HostedVolume;
  /** Restore in place. An older data mover, which lacks this flag, refuses to start. */
  readonly isInPlace?: boolean;
  readonly isBlock: boolean;
  /** Skip the SELinux relabelling of a read-only volume. */
  readonly spcNoRelabeling?: boolean;
  readonly operationTimeout: string;
  readonly affinity?: PodSpec['affinity'];
  readonly selectedNode?: string | undefined;
  readonly cacheClaim?: string | undefined;
  /** Backups from a snapshot only: RFC 3339 time of the snapshot. */
  readonly frozenAt?: string | undefined;
  /** Backups only: sources of the rules for excluded paths. */
  readonly excludedBy?: {
    readonly storageClass: string;
    readonly annotations?: string | undefined;
  };
  /** Capacity of the volume, or the size of its data if known; 0 if both are unknown. */
  readonly volumeBytes: number;
}

const CACHE_PATH = '/cachedir';
/** HOME in Longshore's image (Dockerfile). */
const IMAGE_HOME = '/scratch';
/**
 * Grace period if another client deletes the pod. With 0, a pod on a lost node would vanish from
 * the API while its mover still runs. A mover uses the time to leave a checkpoint.
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
/** Purpose of a hosting pod. Also names its label, and the mover's flag with the CR. */
export type HostedKind = keyof typeof KINDS;

/**
 * Name of the hosting pod's CR, from its label. Only CRs for Velero's data mover use Velero's
 * label. Velero's agent writes phases to every CR named by that label, so other CRs use
 * Longshore's.
 */
export function hostedName(pod: Pod, kind: HostedKind): string | undefined {
  const { labels = {} } = pod.metadata;
  return labels[`velero.io/${kind}`] ?? labels[`longshore.io/${kind}`];
}

/** Size in bytes of the hosting pod's volume; 0 if its pod has no such annotation. */
export function volumeBytesOf({ metadata }: Pod): number {
  const bytes = Number(metadata.annotations?.[VOLUME_BYTES] ?? 0);
  return bytes > 0 && Number.isFinite(bytes) ? bytes : 0;
}

/**
 * Capabilities of root that data movers need. Backups read files of any mode (DAC_READ_SEARCH).
 * Restores write into directories of others (DAC_OVERRIDE), set owners (CHOWN), modes and times
 * (FOWNER), and keep set-id bits (FSETID).
 */
const CAPABILITIES = {
  backup: ['DAC_READ_SEARCH'],
  restore: ['CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID'],
} as const;

/** The pod of the data mover (Velero: pkg/exposer/csi_snapshot.go, generic_restore.go). */
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
      // The same propagation as Velero. The node can unmount only mounts below the volume. The
      // volume itself stays mounted until this pod ends.
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
      // No scheduler is involved: the volume's pod runs on this node.
      ...(isOfPod
        ? { nodeName: volume.node }
        : { topologySpreadConstraints: [spreadOver(group)], affinity: request.affinity ?? {} }),
      ...(serviceAccountName !== undefined && { serviceAccountName }),
      ...pick(spec, ['dnsPolicy', 'dnsConfig', 'imagePullSecrets']),
      ...(config.priorityClassName !== undefined && {
        priorityClassName: config.priorityClassName,
      }),
      // The agent runs on this node, so its tolerations are sufficient.
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
            // A different image may write to its root file system.
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
 * The node usually has the image, because the agent runs there. During a rolling update it may not:
 * the template names the new image before the node's agent uses it.
 */
const imageOf = (
  container: Container,
  { moverImage }: ExposerOptions,
): Pick<Container, 'image' | 'imagePullPolicy'> => ({
  ...(moverImage === undefined ? pick(container, ['image']) : { image: moverImage }),
  imagePullPolicy: 'IfNotPresent',
});

/**
 * Empty directories for Longshore's image, unless something else is mounted there: for temporary
 * files, and for its home with the caches.
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

/** Directories of the node are only for the agent. A tenant's data must not reach them. */
function volumesOf(request: HostingPodRequest, inheritedVolumes: readonly Volume[]): Volume[] {
  const { volume, cacheClaim, owner } = request;
  const volumes: Volume[] = [{ name: owner.metadata.uid, ...sourceOf(volume) }];
  if (cacheClaim !== undefined) {
    volumes.push({ name: 'cachedir', persistentVolumeClaim: { claimName: cacheClaim } });
  }
  return [...volumes, ...inheritedVolumes];
}

function sourceOf(volume: HostedVolume): Omit<Volume, 'name'> {
  // A missing directory must not be created: it would be an empty volume.
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
