import { type Command, Option } from 'commander';
import { Agent, describeMovements } from '../agent/index.ts';
import { CodedError, isCode, type Logger, systemClock } from '../base/index.ts';
import {
  cacheLimitBytes,
  concurrencyOf,
  environment,
  type NodeAgentConfig,
  parseNodeAgentConfig,
  podResourcesOf,
} from '../config/index.ts';
import type { ExposeConfig } from '../exposer/index.ts';
import {
  CONFIG_MAPS,
  connectToCluster,
  type KubeClient,
  matchesSelector,
  NODES,
  PRIORITY_CLASSES,
  STORAGE_CLASSES,
} from '../kube/index.ts';
import { createServerLogger, serveStatus } from '../observability/index.ts';
import { interruptSignal } from './context.ts';
import { JSON_OPTION } from './program.ts';
import { printJson, printTable } from './terminal.ts';
import { durationFlagMs, UsageError } from './usage-error.ts';

const USER_AGENT = 'longshore-node-agent/0.1.0';
const MIB = 2 ** 20;

interface ClusterFlags {
  kubeconfig?: string;
  context?: string;
  namespace?: string;
  dataMovers: string;
  agentSelector: string;
}

interface ServerFlags extends ClusterFlags {
  node?: string;
  logLevel: string;
  logFormat: string;
  metricsAddress: string;
  resourceTimeout: string;
  dataMoverPrepareTimeout: string;
  nodeAgentConfigmap?: string;
  backupRepositoryConfigmap?: string;
  features?: string;
  dataMoverRetries: string;
  stallTimeout: string;
  takeoverTimeout: string;
  progressInterval: string;
  dataMoverImage?: string;
  dataMoverCommand?: string;
  daemonset: string;
}

function withClusterOptions(command: Command): Command {
  return command
    .option('--kubeconfig <file>', 'kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod)')
    .option('--context <name>', 'context of the kubeconfig')
    .option('-n, --namespace <name>', 'namespace that Velero is in (default: VELERO_NAMESPACE)')
    .option(
      '--data-movers <names>',
      'values of spec.datamover that are served; velero serves the empty one too',
      'velero',
    )
    .option('--agent-selector <labels>', "labels of the node-agents' own pods", 'role=node-agent');
}

export function addNodeAgentCommands(program: Command): void {
  const group = program
    .command('node-agent')
    .description('what the DaemonSet runs: moves the volumes of DataUploads and DataDownloads');
  withClusterOptions(group.command('server'))
    .description(
      "claims DataUploads and DataDownloads and looks after them, as Velero's node-agent does",
    )
    .option('--node <name>', 'the node that this is (default: NODE_NAME)')
    .option('--log-level <level>', 'debug, info, warning or error', 'info')
    .addOption(
      new Option('--log-format <format>', 'of the log').choices(['text', 'json']).default('text'),
    )
    .option(
      '--metrics-address <address>',
      'where /metrics, /healthz and /readyz are served',
      ':8085',
    )
    .option('--resource-timeout <duration>', 'for single waits on the API server', '10m')
    .option(
      '--data-mover-prepare-timeout <duration>',
      'how long a volume and its pod may take to be ready; time in queues does not count',
      '30m',
    )
    .option('--node-agent-configmap <name>', "Velero's ConfigMap of node-agent settings")
    .option('--backup-repository-configmap <name>', "Velero's ConfigMap of repository settings")
    .option('--data-mover-retries <n>', 'how often a data mover that died is started again', '3')
    .option(
      '--stall-timeout <duration>',
      'a data mover that moves no byte for this long has failed',
      '15m',
    )
    .option(
      '--takeover-timeout <duration>',
      'an agent that is away for this long loses what it looks after to another',
      '5m',
    )
    .option('--progress-interval <duration>', 'how often data movers tell how far they are', '5s')
    .option('--data-mover-image <image>', "of hosting pods (default: the DaemonSet's own)")
    .option('--data-mover-command <command>', 'of hosting pods, words by spaces', '/velero')
    .option('--daemonset <name>', 'whose pod template hosting pods follow', 'node-agent')
    .addOption(new Option('--features <names>', 'accepted and not used, as by Velero').hideHelp())
    .addHelpText(
      'after',
      '\nExample:\n  $ longshore node-agent server --node-agent-configmap node-agent-config',
    )
    .action(serve);
  withClusterOptions(group.command('status'))
    .description('DataUploads and DataDownloads, and what each waits for')
    .option(...JSON_OPTION)
    .addHelpText('after', '\nExample:\n  $ longshore node-agent status -n velero')
    .action(status);
}

function clusterOf(flags: ClusterFlags): { client: KubeClient; namespace: string } {
  const { kubeconfig, context, namespace } = flags;
  const client = connectToCluster({ kubeconfig, context, userAgent: USER_AGENT });
  return { client, namespace: namespace ?? environment.veleroNamespace };
}

function dataMoversOf({ dataMovers }: ClusterFlags): Set<string> {
  const names = new Set(dataMovers.split(',').map((name) => name.trim()));
  if (names.has('velero')) names.add('');
  return names;
}

const durationMs = (flag: string, text: string): number => durationFlagMs(flag, text, '30m');

async function serve(flags: ServerFlags): Promise<void> {
  const node = flags.node ?? environment.nodeName;
  if (node === undefined) throw new UsageError('no node is named: set NODE_NAME or --node');
  const retries = Number(flags.dataMoverRetries);
  if (!Number.isInteger(retries) || retries < 0) {
    throw new UsageError(`--data-mover-retries "${flags.dataMoverRetries}" is not a number from 0`);
  }
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const { client, namespace } = clusterOf(flags);
  durationMs('--resource-timeout', flags.resourceTimeout);
  const stallTimeoutMs = durationMs('--stall-timeout', flags.stallTimeout);
  durationMs('--progress-interval', flags.progressInterval);
  const { config, expose } = await loadConfig(client, namespace, flags, logger);
  const labels = (await client.find(NODES, { name: node }))?.metadata.labels;
  const agent = new Agent({
    client,
    logger,
    node,
    namespace,
    dataMovers: dataMoversOf(flags),
    agentSelector: flags.agentSelector,
    writeLog: (text) => void process.stdout.write(text),
    concurrency: concurrencyOf(
      config,
      (selector) => labels !== undefined && matchesSelector(asLabelSelector(selector), labels),
    ),
    prepareTimeoutMs: durationMs('--data-mover-prepare-timeout', flags.dataMoverPrepareTimeout),
    restartsMax: retries,
    stallTimeoutMs,
    takeoverMs: durationMs('--takeover-timeout', flags.takeoverTimeout),
    prepareQueueLength: config.loadConcurrency?.prepareQueueLength ?? 0,
    exposer: {
      daemonSet: flags.daemonset,
      moverImage: flags.dataMoverImage,
      moverCommand: (flags.dataMoverCommand ?? '/velero').split(' ').filter((word) => word !== ''),
      moverEnvironment: {
        LONGSHORE_STALL_TIMEOUT: flags.stallTimeout,
        LONGSHORE_PROGRESS_INTERVAL: flags.progressInterval,
      },
      config: expose,
    },
  });
  const interrupt = interruptSignal();
  await using server = await serveStatus(flags.metricsAddress, {
    metrics: () => agent.metrics.registry.metrics(),
    unhealthy: () => agent.unhealthy(),
    notReady: () => agent.notReady(),
  });
  logger.info({ address: server.address }, 'metrics and health are served');
  try {
    await agent.run(interrupt.signal);
  } finally {
    interrupt.dispose();
    client.close();
  }
}

type Selector = Parameters<Parameters<typeof concurrencyOf>[1]>[0];

function asLabelSelector({ matchLabels, matchExpressions }: Selector): {
  matchLabels?: Record<string, string>;
  matchExpressions?: { key: string; operator: string; values?: string[] }[];
} {
  return {
    ...(matchLabels && { matchLabels }),
    ...(matchExpressions && {
      matchExpressions: matchExpressions.map(({ key, operator, values }) => ({
        key,
        operator,
        ...(values && { values }),
      })),
    }),
  };
}

async function loadConfig(
  client: KubeClient,
  namespace: string,
  flags: ServerFlags,
  logger: Logger,
): Promise<{ config: NodeAgentConfig; expose: ExposeConfig }> {
  const load = async (name: string): Promise<Record<string, string> | undefined> => {
    try {
      return (await client.get(CONFIG_MAPS, { namespace, name })).data;
    } catch (cause) {
      if (!isCode(cause, 'KUBE_NOT_FOUND')) throw cause;
      throw new CodedError('BAD_CONFIG', `there is no ConfigMap ${namespace}/${name}`, { cause });
    }
  };
  const { nodeAgentConfigmap: name, backupRepositoryConfigmap } = flags;
  const { config, warnings } = name
    ? parseNodeAgentConfig(name, await load(name))
    : parseNodeAgentConfig('', { none: '{}' });
  for (const warning of warnings) logger.warn({ configMap: name, warning }, 'unknown setting');
  const repository = backupRepositoryConfigmap ? await load(backupRepositoryConfigmap) : undefined;
  const { cachePVC, priorityClassName, podAnnotations, podLabels } = config;
  const cacheClass = cachePVC?.storageClass;
  const isCacheUsable =
    cacheClass !== undefined && (await isUsableCache(client, cacheClass, logger));
  const isPriorityKnown =
    priorityClassName !== undefined &&
    (await client.find(PRIORITY_CLASSES, { name: priorityClassName })) !== undefined;
  if (priorityClassName !== undefined && !isPriorityKnown) {
    logger.warn({ priorityClassName }, 'there is no such priority class; none is used');
  }
  return {
    config,
    expose: {
      loadAffinity: (config.loadAffinity ?? []).map(({ nodeSelector, storageClass }) => ({
        nodeSelector: asLabelSelector(nodeSelector),
        storageClass,
      })),
      backupPvc: config.backupPVC ?? {},
      ignoreDelayBinding: config.restorePVC?.ignoreDelayBinding === true,
      podResources: podResourcesOf(config),
      priorityClassName: isPriorityKnown ? priorityClassName : undefined,
      podAnnotations: podAnnotations ?? undefined,
      podLabels: podLabels ?? undefined,
      ...(isCacheUsable && {
        cacheVolume: {
          storageClass: cacheClass,
          residentThresholdBytes: (cachePVC?.residentThresholdInMB ?? 0) * MIB,
          limitBytes: cacheLimitBytes(repository),
        },
      }),
    },
  };
}

/** Cache volumes go with their claims; a class that keeps them would fill the storage. */
async function isUsableCache(client: KubeClient, name: string, logger: Logger): Promise<boolean> {
  const found = await client.find(STORAGE_CLASSES, { name });
  const policy = found?.reclaimPolicy ?? 'Delete';
  if (found && policy === 'Delete') return true;
  const reason = found ? `its reclaim policy is ${policy}, not Delete` : 'it does not exist';
  logger.warn({ storageClass: name, reason }, 'cachePVC is ignored');
  return false;
}

async function status(flags: ClusterFlags & { json?: boolean }): Promise<void> {
  const { client, namespace } = clusterOf(flags);
  const rows = await describeMovements({
    client,
    namespace,
    clock: systemClock,
    dataMovers: dataMoversOf(flags),
    agentSelector: flags.agentSelector,
  });
  client.close();
  if (flags.json === true) {
    printJson(rows);
    return;
  }
  printTable(
    ['KIND', 'NAME', 'PHASE', 'NODE', 'AGE', 'WAITS FOR'],
    rows.map(({ kind, name, phase, node, ageSeconds, waitsFor }) => [
      kind,
      name,
      phase,
      node,
      ageText(ageSeconds),
      waitsFor,
    ]),
  );
}

/** As kubectl shows it: 45s, 12m, 5h, 3d. */
function ageText(seconds: number): string {
  if (seconds < 120) return `${Math.max(0, Math.floor(seconds))}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}
