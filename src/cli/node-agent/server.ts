import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  Agent,
  cacheLimitBytes,
  concurrencyOf,
  excludeConfigIn,
  moverSettingsIn,
  type NodeAgentConfig,
  parseNodeAgentConfig,
  FENCE_MARGIN_MS,
  FENCE_VARIABLE,
} from '../../agent/index.ts';
import { CodedError, isCode, type Logger, matchesSelector } from '../../base/index.ts';
import { cgroupMemoryBytes, environment, podResourcesOf } from '../../config/index.ts';
import type { ExposeConfig } from '../../exposer/index.ts';
import {
  BLOCK_MOVER,
  CONFIG_MAPS,
  type KubeClient,
  NODES,
  PRIORITY_CLASSES,
  STORAGE_CLASSES,
} from '../../kube/index.ts';
import { moverVariables } from '../../mover/index.ts';
import { certificateOf, createServerLogger, serveStatus } from '../../observability/index.ts';
import { type ClusterFlags, clusterOf, dataMoversOf } from '../cluster.ts';
import { moverLogStore } from './mover-log-store.ts';
import { printText } from '../output/streams.ts';
import { interruptSignal } from '../context.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';

export interface ServerFlags extends ClusterFlags {
  dataMovers: string;
  agentSelector: string;
  node?: string;
  logLevel: string;
  logFormat: string;
  metricsAddress: string;
  tlsCertificate?: string;
  resourceTimeout: string;
  dataMoverPrepareTimeout: string;
  nodeAgentConfigmap?: string;
  backupRepositoryConfigmap?: string;
  features?: string;
  dataMoverRetries: string;
  stallTimeout: string;
  takeoverTimeout: string;
  fenceTimeout: string;
  progressInterval: string;
  dataMoverImage?: string;
  dataMoverCommand?: string;
  daemonset: string;
}

const MIB = 2 ** 20;
const durationMs = (flag: string, text: string): number => durationFlagMs(flag, text, '30m');

/** Runs the node-agent until it is stopped. */
export async function serve(flags: ServerFlags): Promise<void> {
  const node = flags.node ?? environment.nodeName;
  if (node === undefined)
    throw new UsageError('the name of this node is missing: set NODE_NAME or --node');
  const retries = Number(flags.dataMoverRetries);
  if (!/^\d{1,9}$/.test(flags.dataMoverRetries)) {
    throw new UsageError(
      `--data-mover-retries "${flags.dataMoverRetries}" is not a whole number of 0 or more`,
    );
  }
  if (dataMoversOf(flags).has(BLOCK_MOVER)) {
    throw new UsageError(
      `--data-movers names ${BLOCK_MOVER}, which only the node-agent of Velero 1.19 serves`,
    );
  }
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const { client, namespace } = clusterOf(flags);
  durationMs('--resource-timeout', flags.resourceTimeout);
  const stallTimeoutMs = durationMs('--stall-timeout', flags.stallTimeout);
  durationMs('--progress-interval', flags.progressInterval);
  const takeoverMs = durationMs('--takeover-timeout', flags.takeoverTimeout);
  const fenceMs = durationMs('--fence-timeout', flags.fenceTimeout);
  if (fenceMs + FENCE_MARGIN_MS > takeoverMs) {
    throw new UsageError(
      `--fence-timeout ${flags.fenceTimeout} must be at least ${FENCE_MARGIN_MS / 1000} s shorter than --takeover-timeout ${flags.takeoverTimeout}: ` +
        'a data mover that is cut off has to stop before another agent starts its successor',
    );
  }
  const { config, expose } = await loadConfig(client, namespace, flags, logger);
  const settings = moverSettingsIn(config);
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  const directory = mkdtempSync(join(tmpdir(), 'longshore-agent-'));
  const labels = (await client.find(NODES, { name: node }))?.metadata.labels;
  const dataMovers = dataMoversOf(flags);
  const agent = new Agent({
    client,
    logger,
    node,
    namespace,
    dataMovers,
    servesPodVolumes: dataMovers.has('velero'),
    agentSelector: flags.agentSelector,
    writeLog: (text) => printText(text),
    moverLogStore: moverLogStore({ client, logger, namespace, directory }),
    concurrency: concurrencyOf(
      config,
      (selector) => labels !== undefined && matchesSelector(selector, labels),
    ),
    memoryLimitBytes: cgroupMemoryBytes(),
    prepareTimeoutMs: durationMs('--data-mover-prepare-timeout', flags.dataMoverPrepareTimeout),
    restartsMax: retries,
    stallTimeoutMs,
    takeoverMs,
    fenceMs,
    prepareQueueLength: config.loadConcurrency?.prepareQueueLength ?? 0,
    exposer: {
      daemonSet: flags.daemonset,
      moverImage: flags.dataMoverImage,
      moverCommand: (flags.dataMoverCommand ?? '/velero').split(' ').filter((word) => word !== ''),
      moverEnvironment: {
        LONGSHORE_STALL_TIMEOUT: flags.stallTimeout,
        LONGSHORE_PROGRESS_INTERVAL: flags.progressInterval,
        [FENCE_VARIABLE]: flags.fenceTimeout,
        ...moverVariables(settings.all),
      },
      locationEnvironment: Object.fromEntries(
        Object.entries(settings.locations).map(([name, own]) => [name, moverVariables(own)]),
      ),
      config: expose,
    },
  });
  const interrupt = interruptSignal();
  const { clock } = client;
  using certificate = await certificateOf(flags.tlsCertificate, { logger, clock });
  const sources = {
    metrics: () => agent.metrics.registry.metrics(),
    notReady: () => agent.notReady(),
  };
  await using server = await serveStatus(flags.metricsAddress, sources, certificate);
  logger.info({ address: server.address }, 'serving metrics and health');
  try {
    await agent.run(interrupt.signal);
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
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
    logger.warn({ priorityClassName }, 'there is no such priority class; using none');
  }
  return {
    config,
    expose: {
      loadAffinity: config.loadAffinity ?? [],
      backupPvc: config.backupPVC ?? {},
      ignoreDelayBinding: config.restorePVC?.ignoreDelayBinding === true,
      restoreSecrets: config.restorePVC ?? undefined,
      podResources: podResourcesOf(config.podResources),
      priorityClassName: isPriorityKnown ? priorityClassName : undefined,
      podAnnotations: podAnnotations ?? undefined,
      podLabels: podLabels ?? undefined,
      privilegedFsBackup: config.privilegedFsBackup,
      excludePaths: excludeConfigIn(config),
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

/**
 * A cache volume is deleted with its claim. A class that retains volumes would fill the storage.
 */
async function isUsableCache(client: KubeClient, name: string, logger: Logger): Promise<boolean> {
  const found = await client.find(STORAGE_CLASSES, { name });
  const policy = found?.reclaimPolicy ?? 'Delete';
  if (found && policy === 'Delete') return true;
  const reason = found ? `its reclaim policy is ${policy}, not Delete` : 'it does not exist';
  logger.warn({ storageClass: name, reason }, 'cachePVC is ignored');
  return false;
}
