import { mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import type { Logger } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { type KubeClient, ReadsAhead, REFUSED_MS } from '../../kube/index.ts';
import {
  certificateOf,
  createServerLogger,
  type HttpListener,
  type ServedCertificate,
  serveStatus,
} from '../../observability/index.ts';
import {
  type Common,
  openControllers,
  type OpenRepository,
  ServerPlugins,
  type ServerSettings,
} from '../../server/compose/index.ts';
import {
  type ControllerName,
  OPERATION_CONTROLLERS,
} from '../../server/compose/controller-names.ts';
import { OperationMetrics, Server, SharedBackups } from '../../server/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { interruptSignal, openContext } from '../context.ts';
import { collectAtRest } from '../resting-memory.ts';
import { openRepositoryStorage } from '../storage-options.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';
import { VELERO_VERSION, VERSION } from '../version.ts';
import { chosenControllers } from './controllers.ts';
import {
  type BackupFlags,
  backupSettingsOf,
  isOn,
  type RestoreFlags,
  restoreSettingsOf,
} from './settings.ts';

export interface ServerFlags extends ClusterFlags, BackupFlags, RestoreFlags {
  kubecontext?: string;
  controllers?: string;
  disableControllers?: string;
  logLevel: string;
  logFormat: string;
  metricsAddress: string;
  statusPageAddress?: string;
  statusPageFiles?: boolean;
  statusPageAudiences?: string;
  tlsCertificate?: string;
  storeValidationFrequency: string;
  backupSyncPeriod: string;
  scheduleSkipImmediately?: boolean | string;
  defaultBackupStorageLocation: string;
  pluginDir: string;
  features?: string;
  uploaderType?: string;
  defaultRepoMaintainFrequency: string;
  backupRepositoryConfigmap?: string;
  repoMaintenanceJobConfigmap?: string;
  concurrentMaintenance: string;
  deployment: string;
  maintenanceJobCommand: string;
  garbageCollectionFrequency: string;
}

const MAINTAIN_FREQUENCY = '--default-repo-maintain-frequency';
const VALIDATION_FREQUENCY = '--store-validation-frequency';
const EXPIRY_FREQUENCY = '--garbage-collection-frequency';
/** Velero: defaultGCFrequency. */
const EXPIRY_MS = 3_600_000;
const SYNC_PERIOD = '--backup-sync-period';

export interface ServerSurroundings {
  /** Velero's flags that were set and have no effect here. */
  readonly ineffective?: readonly string[];
  /** The typed flags, for third-party plugins. */
  readonly pluginFlags?: readonly string[];
  /** Stops the server. The default are the signals of the process. */
  readonly signal?: AbortSignal;
  /** For the server's own log. Logs of backups and restores use the level of the flag. */
  readonly logLevel?: string;
  /** Called when the server is ready, with the address of the status page if any. */
  readonly onServing?: (statusPage: string | undefined) => void;
}

/** Runs the server until it is stopped. */
export async function runServer(
  flags: ServerFlags,
  { ineffective = [], pluginFlags = process.argv.slice(3), ...around }: ServerSurroundings = {},
): Promise<void> {
  const names = chosenControllers(flags.controllers, flags.disableControllers);
  const settings = settingsOf(flags, names);
  const logger = createServerLogger(around.logLevel ?? flags.logLevel, flags.logFormat);
  warnOfSurroundings(logger, ineffective);
  const context = flags.context ?? flags.kubecontext;
  const cluster = clusterOf(
    { ...flags, ...(context !== undefined && { context }) },
    'longshore-server',
    { refusedMs: REFUSED_MS },
  );
  const { client } = cluster;
  const directory = mkdtempSync(join(tmpdir(), 'longshore-server-'));
  const interrupt = around.signal
    ? { signal: around.signal, dispose: () => undefined }
    : interruptSignal();
  const common = commonOf(names, flags, { ...cluster, logger, directory, pluginFlags });
  const { namespace, host, registry } = common;
  const openStorage = (repo: string, { create = false }: { create?: boolean }) =>
    openRepositoryStorage({ repo }, logger, { cache: false, create });
  const controllers = await openControllers(names, common, settings, openStorage);
  const server = new Server({ client, logger, namespace, host, registry, controllers });
  const collectNoMore = collectAtRest();
  try {
    using certificate = await certificateOf(flags.tlsCertificate, { logger, clock: client.clock });
    const sources = { metrics: () => registry.metrics(), notReady: () => server.notReady() };
    await using status = await serveStatus(flags.metricsAddress, sources, certificate);
    await using page = await statusPageOf(flags, common, certificate);
    const addresses = { address: status.address, ...(page && { statusPage: page.address }) };
    logger.info({ ...addresses, controllers: names }, 'serving metrics and health');
    around.onServing?.(page?.address);
    await server.run(interrupt.signal);
  } finally {
    collectNoMore();
    interrupt.dispose();
    await common.plugins?.close();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

function warnOfSurroundings(logger: Logger, ineffective: readonly string[]): void {
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  if (ineffective.length > 0) {
    logger.warn({ flags: ineffective }, "flags of Velero's server that have no effect here yet");
  }
}

interface Process {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
  readonly directory: string;
  readonly pluginFlags: readonly string[];
}

/** The dependencies of all controllers of this process. */
function commonOf(
  names: readonly ControllerName[],
  flags: ServerFlags,
  { pluginFlags, ...process }: Process,
): Common {
  const { client, logger, namespace } = process;
  const registry = new Registry();
  const host = hostname();
  const makesRestores = names.includes('restore');
  const makesBackups = OPERATION_CONTROLLERS.some((name) => names.includes(name));
  const makesAny = makesBackups || makesRestores || names.includes('backup-deletion');
  const reads = new ReadsAhead(client);
  return {
    ...process,
    reads,
    host,
    registry,
    plugins:
      makesAny || names.includes('server-status-request')
        ? ServerPlugins.begin({
            client: reads.client,
            logger,
            folder: flags.pluginDir,
            features: flags.features,
            makesBackups,
            makesRestores,
            host,
            flags: pluginFlags,
          })
        : undefined,
    backups: new SharedBackups({ client, logger, namespace }),
    ...(makesAny && { operationMetrics: new OperationMetrics({ registry, clock: client.clock }) }),
    openRepository: repositoryOpener(logger),
    version: VERSION,
  };
}

/** No disk cache, because each repository is opened once per backup. */
export const repositoryOpener =
  (logger: Logger): OpenRepository =>
  (repo, { password, memoryLimit }) =>
    // Velero's client name in all its repositories.
    openContext(
      { repo, client: 'default@default', memoryLimit },
      { password, logger, cache: false },
    );

/** The code of the page is loaded only on demand. */
async function statusPageOf(
  { statusPageAddress: address, statusPageFiles: hasFiles = false, ...flags }: ServerFlags,
  common: Common,
  certificate: ServedCertificate | undefined,
): Promise<HttpListener | undefined> {
  if (address === undefined) return undefined;
  const { openStatusPage } = await import('./page.ts');
  const named = flags.statusPageAudiences?.split(',').map((name) => name.trim());
  const audiences = named && { audiences: named.filter((name) => name !== '') };
  return openStatusPage(address, { ...common, hasFiles, certificate, ...audiences });
}

/** Throws `UsageError`. */
function settingsOf(flags: ServerFlags, names: readonly ControllerName[]): ServerSettings {
  const jobsMax = Number(flags.concurrentMaintenance);
  if (!/^[1-9]\d{0,3}$/.test(flags.concurrentMaintenance)) {
    const text = `--concurrent-maintenance "${flags.concurrentMaintenance}" is not a whole number from 1 to 9999`;
    throw new UsageError(text);
  }
  const { uploaderType = 'kopia', storeValidationFrequency: validation } = flags;
  const { garbageCollectionFrequency: expiry } = flags;
  if (flags.statusPageFiles === true && flags.statusPageAddress === undefined) {
    throw new UsageError(
      '--status-page-files needs --status-page-address: it is a part of that page',
    );
  }
  if (uploaderType !== 'kopia') {
    throw new UsageError(`--uploader-type "${uploaderType}" is not kopia, which is the only one`);
  }
  return {
    backups: {
      ...backupSettingsOf(flags),
      isDeletionHere: names.includes('backup-deletion'),
      isMadeHere: names.includes('backup'),
    },
    restores: restoreSettingsOf(flags),
    features: flags.features,
    repositories: {
      frequency: frequencyOf(flags.defaultRepoMaintainFrequency),
      configMap: flags.backupRepositoryConfigmap,
      jobs: {
        configMap: flags.repoMaintenanceJobConfigmap,
        jobsMax,
        deployment: flags.deployment,
        command: flags.maintenanceJobCommand.split(' ').filter((word) => word !== ''),
        logLevel: flags.logLevel,
        logFormat: flags.logFormat,
      },
    },
    defaultLocation: flags.defaultBackupStorageLocation,
    // Velero's version for its CLI, and our own.
    serverVersion: `${VELERO_VERSION}+longshore.${VERSION}`,
    validationFrequencyMs: isZero(validation)
      ? 0
      : durationFlagMs(VALIDATION_FREQUENCY, validation, '1m0s'),
    expiryFrequencyMs: isZero(expiry)
      ? EXPIRY_MS
      : durationFlagMs(EXPIRY_FREQUENCY, expiry, '1h0m0s'),
    syncPeriodMs: isZero(flags.backupSyncPeriod)
      ? 0
      : durationFlagMs(SYNC_PERIOD, flags.backupSyncPeriod, '1m0s'),
    skipsImmediately: isOn('--schedule-skip-immediately', flags.scheduleSkipImmediately),
  };
}

const isZero = (text: string): boolean => /^0(?:ns|us|µs|ms|s|m|h)?$/.test(text);

/** As in Velero's flag: 0 means Kopia's own default, one hour. */
function frequencyOf(text: string): string {
  if (isZero(text)) return '1h0m0s';
  durationFlagMs(MAINTAIN_FREQUENCY, text, '1h0m0s');
  // Go has no unit for days.
  return text.replaceAll(/(\d+(?:\.\d+)?)d/g, (_, days: string) => `${Number(days) * 24}h`);
}
