import { messageOf, quantityBytes } from '../base/index.ts';
import type { ActionContext, BackupLog } from '../backup/index.ts';
import type { Container, KubeClient, Pod } from '../kube/index.ts';
import { PluginConfigs, readYamlObject, type RestoreAction } from '../restore/index.ts';
import { fileBackupsOf } from './file-backups.ts';
import type { FileBackups } from './shared-claims.ts';

/** The action that adds the container to pods. Its ConfigMap has this label, too. */
export const WAIT_ACTION = 'velero.io/pod-volume-restore';

export interface WaitContainerOptions {
  readonly client: Pick<KubeClient, 'list'>;
  /** The namespace of the server and its ConfigMaps. */
  readonly namespace: string;
  /** The default image, with `/velero-restore-helper`. A ConfigMap may name another image. */
  readonly image: string | ((context: ActionContext) => Promise<string>);
  /** The tag of an image that a ConfigMap names without one. */
  readonly tag: string;
  /** The file backups of the restore's backup. */
  readonly files: Pick<FileBackups, 'of'>;
  readonly log: BackupLog;
}

type Config = Readonly<Record<string, string>>;

const NAMES = ['restore-wait', 'restic-wait'];
const HELPER = '/velero-restore-helper';
const DEFAULT_CPU = '100m';
const DEFAULT_MEMORY = '128Mi';
/**
 * The level `restricted` of Pod Security. Velero: pkg/restore/actions/pod_volume_restore_action.go,
 * defaultSecurityCtx.
 */
const DEFAULT_SECURITY = {
  runAsUser: 1000,
  runAsNonRoot: true,
  allowPrivilegeEscalation: false,
  capabilities: { drop: ['ALL'] },
  seccompProfile: { type: 'RuntimeDefault' },
};

/**
 * Adds an init container that waits until each volume has the mark of this restore. Removes the
 * container of an earlier restore, even if the pod has nothing to wait for. Velero:
 * pkg/restore/actions/pod_volume_restore_action.go (v1.18.3).
 */
export function waitContainerAction(options: WaitContainerOptions): RestoreAction {
  const configs = new PluginConfigs(options.client, options.namespace);
  return {
    name: WAIT_ACTION,
    appliesTo: { includedResources: ['pods'] },
    execute: async ({ item, itemFromBackup, restore }, context) => {
      const pod = item as Pod;
      const { initContainers = [] } = pod.spec;
      const kept = initContainers.filter(({ name }) => !NAMES.includes(name));
      const { namespace = '' } = itemFromBackup.metadata;
      const volumes = fileBackupsOf(pod, namespace, await options.files.of(pod, namespace));
      const config = volumes.size === 0 ? {} : await configs.of(WAIT_ACTION, context.signal);
      const { uid } = restore.metadata;
      const image = volumes.size === 0 ? '' : await imageOf(config, options, context);
      const waits =
        volumes.size === 0 ? [] : [container(pod, { volumes, config, uid, image, options })];
      if (waits.length === 0 && kept.length === initContainers.length) return {};
      const changed = [...waits, ...kept];
      return { item: { ...pod, spec: { ...pod.spec, initContainers: changed } } as Pod };
    },
  };
}

function container(
  pod: Pod,
  {
    volumes,
    config,
    uid,
    image,
    options,
  }: {
    readonly volumes: ReadonlyMap<string, unknown>;
    readonly config: Config;
    readonly uid: string;
    readonly image: string;
    readonly options: WaitContainerOptions;
  },
): Container {
  const env = (name: string, fieldPath: string) => ({
    name,
    valueFrom: { fieldRef: { fieldPath } },
  });
  return {
    name: 'restore-wait',
    image,
    command: [config.command ? config.command : HELPER],
    args: [uid],
    env: [env('POD_NAMESPACE', 'metadata.namespace'), env('POD_NAME', 'metadata.name')],
    volumeMounts: [...volumes.keys()]
      .sort()
      .map((name) => ({ name, mountPath: `/restores/${name}` })),
    resources: resourcesOf(config, options.log),
    securityContext: securityOf(pod, config, options.log),
  };
}

/** A name without a registry counts as no image. */
async function imageOf(
  { image = '' }: Config,
  options: WaitContainerOptions,
  context: ActionContext,
): Promise<string> {
  const parts = image.split('/');
  if (parts.length === 1) {
    return typeof options.image === 'string' ? options.image : options.image(context);
  }
  return parts.at(-1)?.includes(':') ? image : `${image}:${options.tag}`;
}

function resourcesOf(config: Config, log: BackupLog): object {
  const said = {
    cpuRequest: config.cpuRequest ? config.cpuRequest : DEFAULT_CPU,
    memRequest: config.memRequest ? config.memRequest : DEFAULT_MEMORY,
    cpuLimit: config.cpuLimit ? config.cpuLimit : DEFAULT_CPU,
    memLimit: config.memLimit ? config.memLimit : DEFAULT_MEMORY,
  };
  const problem = whyNoResources(said);
  if (problem !== undefined) {
    log.warn(`couldn't parse resource requirements of ${WAIT_ACTION}: ${problem}; using defaults`);
    const all = { cpu: DEFAULT_CPU, memory: DEFAULT_MEMORY };
    return { requests: all, limits: { ...all } };
  }
  // 0 means no limit.
  const kept = (cpu: string, memory: string): Record<string, string> => ({
    ...(amountOf(cpu) > 0 && { cpu }),
    ...(amountOf(memory) > 0 && { memory }),
  });
  return {
    requests: kept(said.cpuRequest, said.memRequest),
    limits: kept(said.cpuLimit, said.memLimit),
  };
}

const QUANTITY = /^\d+(\.\d+)?(m|[kMGTPE]i?|e\d+)?$/;

/** A number of cores or bytes; NaN for other texts. */
function amountOf(text: string): number {
  if (!QUANTITY.test(text)) return NaN;
  return text.endsWith('m') ? Number(text.slice(0, -1)) / 1000 : quantityBytes(text);
}

function whyNoResources(said: Readonly<Record<string, string>>): string | undefined {
  for (const [key, text] of Object.entries(said)) {
    if (!Number.isFinite(amountOf(text))) return `${key} ${JSON.stringify(text)} is no quantity`;
  }
  for (const [what, name] of [
    ['cpu', 'CPU'],
    ['mem', 'Memory'],
  ] as const) {
    const [request = '', limit = ''] = [said[`${what}Request`], said[`${what}Limit`]];
    if (amountOf(limit) > 0 && amountOf(request) > amountOf(limit)) {
      return `${name} request "${request}" must be less than or equal to ${name} limit "${limit}"`;
    }
  }
  return undefined;
}

type SecurityContext = Readonly<Record<string, unknown>>;

/** The security context of the ConfigMap, or of the first container, or a safe default. */
function securityOf(pod: Pod, config: Config, log: BackupLog): SecurityContext {
  try {
    const configured = configuredSecurity(config);
    if (configured) return configured;
  } catch (error) {
    log.warn(
      `Using default securityContext values of ${WAIT_ACTION}, couldn't parse securityContext requirements: ${messageOf(error)}`,
    );
  }
  const [first] = pod.spec.containers;
  const copied = (first as { securityContext?: SecurityContext } | undefined)?.securityContext;
  if (copied) return { ...copied };
  const { runAsUser, runAsGroup, runAsNonRoot } = (pod.spec.securityContext ?? {}) as {
    runAsUser?: number;
    runAsGroup?: number;
    runAsNonRoot?: boolean;
  };
  const result: Record<string, unknown> = { ...DEFAULT_SECURITY };
  if (runAsUser !== undefined) result.runAsUser = runAsUser;
  if (runAsGroup !== undefined) result.runAsGroup = runAsGroup;
  if (runAsUser === 0) {
    if (runAsNonRoot === undefined) delete result.runAsNonRoot;
    else result.runAsNonRoot = runAsNonRoot;
  }
  return result;
}

const SECURITY_FIELDS = [
  ...['capabilities', 'privileged', 'seLinuxOptions', 'windowsOptions', 'runAsUser', 'runAsGroup'],
  ...['runAsNonRoot', 'readOnlyRootFilesystem', 'allowPrivilegeEscalation', 'procMount'],
  ...['seccompProfile', 'appArmorProfile'],
];

/** Throws a sentence. `secCtx` is a whole context in YAML, and overrides the other keys. */
function configuredSecurity(config: Config): SecurityContext | undefined {
  const { secCtxRunAsUser, secCtxRunAsGroup, secCtxAllowPrivilegeEscalation, secCtx } = config;
  const result: Record<string, unknown> = {
    ...(secCtxRunAsUser && { runAsUser: wholeNumber(secCtxRunAsUser) }),
    ...(secCtxRunAsGroup && { runAsGroup: wholeNumber(secCtxRunAsGroup) }),
    ...(secCtxAllowPrivilegeEscalation && {
      allowPrivilegeEscalation: truthOf(secCtxAllowPrivilegeEscalation),
    }),
  };
  if (secCtx) {
    const fields = readYamlObject(secCtx, 'secCtx');
    const unknown = Object.keys(fields).find((key) => !SECURITY_FIELDS.includes(key));
    if (unknown !== undefined) throw new Error(`secCtx has no field ${unknown}`);
    Object.assign(result, fields);
  }
  return Object.keys(result).length === 0 ? undefined : result;
}

function wholeNumber(text: string): number {
  if (/^[-+]?\d+$/.test(text)) return Number(text);
  throw new Error(`${JSON.stringify(text)} is no whole number`);
}

function truthOf(text: string): boolean {
  if (['1', 't', 'T', 'TRUE', 'true', 'True'].includes(text)) return true;
  if (['0', 'f', 'F', 'FALSE', 'false', 'False'].includes(text)) return false;
  throw new Error(`${JSON.stringify(text)} is neither true nor false`);
}
