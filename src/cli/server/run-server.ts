import { ReadsAhead, REFUSED_MS } from '../../kube/index.ts';
import { mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { assert } from '../../base/index.ts';
import { openStorage } from '../../blob/index.ts';
import { environment, type StorageKind } from '../../config/index.ts';
import {
  certificateOf,
  createServerLogger,
  type HttpListener,
  type ServedCertificate,
  serveStatus,
} from '../../observability/index.ts';
import {
  DownloadController,
  ExpiryController,
  LocationController,
  OperationMetrics,
  RepositoryController,
  ScheduleController,
  Server,
  type ServerController,
  SharedBackups,
  StatusRequestController,
  SyncController,
} from '../../server/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import {
  type BackupFlags,
  type BackupSettings,
  backupSettingsOf,
  isOn,
} from './backup-settings.ts';
import { openBackups, type OpenedBackups } from './backups.ts';
import { locationBuckets } from './buckets.ts';
import { interruptSignal } from '../context.ts';
import type { Common } from './common.ts';
import { chosenControllers, type ControllerName } from './controllers.ts';
import { collectAtRest } from '../resting-memory.ts';
import { ServerPlugins } from './plugins.ts';
import {
  type OpenedRestores,
  openRestores,
  type RestoreFlags,
  type RestoreSettings,
  restoreSettingsOf,
} from './restores.ts';
import { openRepositoryStorage } from '../storage-options.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';
import { VELERO_VERSION, VERSION } from '../version.ts';

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

/** These share one map of operations. */
const OF_BACKUPS = ['backup', 'backup-operations', 'backup-finalizer'] as const;
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
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  if (ineffective.length > 0) {
    logger.warn({ flags: ineffective }, "flags of Velero's server that have no effect here yet");
  }
  const makesRestores = names.includes('restore');
  const context = flags.context ?? flags.kubecontext;
  const { client, namespace } = clusterOf(
    { ...flags, ...(context !== undefined && { context }) },
    'longshore-server',
    { refusedMs: REFUSED_MS },
  );
  const directory = mkdtempSync(join(tmpdir(), 'longshore-server-'));
  const registry = new Registry();
  const host = hostname();
  const interrupt = around.signal
    ? { signal: around.signal, dispose: () => undefined }
    : interruptSignal();
  const makesBackups = OF_BACKUPS.some((name) => names.includes(name));
  const needsBackups = makesBackups || names.includes('backup-deletion');
  const reads = new ReadsAhead(client);
  const plugins =
    needsBackups || makesRestores || names.includes('server-status-request')
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
      : undefined;
  const common = {
    client,
    reads,
    logger,
    namespace,
    host,
    registry,
    directory,
    plugins,
    backups: new SharedBackups({ client, logger, namespace }),
    ...((needsBackups || makesRestores) && {
      operationMetrics: new OperationMetrics({ registry, clock: client.clock }),
    }),
  };
  const backups = needsBackups ? await openBackups(common, flags, settings.backups) : undefined;
  const restores = makesRestores
    ? openRestores(common, flags, {
        ...settings.backups,
        ...settings.restores,
        itemOperationTimeout: settings.backups.defaults.itemOperationTimeout,
      })
    : undefined;
  const opened: Opened = { backups, restores };
  const server = new Server({
    client,
    logger,
    namespace,
    host,
    registry,
    controllers: names.map((name) => controllerOf(name, common, flags, settings, opened)),
  });
  const collectNoMore = collectAtRest();
  try {
    using certificate = await certificateOf(flags.tlsCertificate, {
      logger,
      clock: client.clock,
    });
    const sources = { metrics: () => registry.metrics(), notReady: () => server.notReady() };
    await using status = await serveStatus(flags.metricsAddress, sources, certificate);
    await using page = await statusPageOf(flags, common, certificate);
    logger.info(
      {
        address: status.address,
        controllers: names,
        ...(page && { statusPage: page.address }),
      },
      'serving metrics and health',
    );
    around.onServing?.(page?.address);
    await server.run(interrupt.signal);
  } finally {
    collectNoMore();
    interrupt.dispose();
    await plugins?.close();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

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

interface Opened {
  readonly backups: OpenedBackups | undefined;
  readonly restores: OpenedRestores | undefined;
}

interface Settings {
  readonly backups: BackupSettings;
  readonly restores: RestoreSettings;
  readonly jobsMax: number;
  readonly maintainFrequency: string;
  readonly validationFrequencyMs: number;
  readonly expiryFrequencyMs: number;
  readonly syncPeriodMs: number;
  readonly skipsImmediately: boolean;
}

/** Throws `UsageError`. */
function settingsOf(flags: ServerFlags, names: readonly ControllerName[]): Settings {
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
    jobsMax,
    maintainFrequency: frequencyOf(flags.defaultRepoMaintainFrequency),
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

function controllerOf(
  name: ControllerName,
  common: Common,
  flags: ServerFlags,
  settings: Settings,
  { backups, restores }: Opened,
): ServerController {
  const { client, logger, namespace, host, registry, directory } = common;
  const defaultCredentials = (kind: StorageKind): string | undefined =>
    environment.credentialsFile(kind);
  const own = { client, logger, namespace, host };
  const stores = {
    directory: join(directory, name),
    defaultCredentials,
    openStorage: (location: string) => openStorage(location),
  };
  switch (name) {
    case 'backup':
    case 'backup-operations':
    case 'backup-finalizer':
    case 'backup-deletion':
      assert(backups, 'a server that makes backups has opened what they need');
      return backups.controllers[name];
    case 'restore':
    case 'restore-operations':
    case 'restore-finalizer':
      assert(restores, 'a server that makes restores has opened what they need');
      return restores.controllers[name];
    case 'gc':
      return new ExpiryController({
        client,
        logger,
        namespace,
        frequencyMs: settings.expiryFrequencyMs,
      });
    case 'backup-repo':
      return new RepositoryController({
        ...own,
        registry,
        connection: {
          openStorage: (repo, { create }) =>
            openRepositoryStorage({ repo }, logger, { cache: false, create }),
          directory,
          defaultCredentials,
          frequency: settings.maintainFrequency,
          configMap: flags.backupRepositoryConfigmap,
        },
        jobs: {
          configMap: flags.repoMaintenanceJobConfigmap,
          jobsMax: settings.jobsMax,
          deployment: flags.deployment,
          command: flags.maintenanceJobCommand.split(' ').filter((word) => word !== ''),
          logLevel: flags.logLevel,
          logFormat: flags.logFormat,
        },
      });
    case 'backup-storage-location':
      return new LocationController({
        ...own,
        registry,
        stores,
        validationFrequencyMs: settings.validationFrequencyMs,
        defaultLocation: flags.defaultBackupStorageLocation,
      });
    case 'backup-sync':
      return new SyncController({
        ...own,
        registry,
        backups: common.backups,
        periodMs: settings.syncPeriodMs,
        buckets: locationBuckets(common, stores.directory),
      });
    case 'schedule':
      return new ScheduleController({
        ...own,
        registry,
        backups: common.backups,
        skipsImmediately: settings.skipsImmediately,
        ...(backups && { series: seriesOf(backups) }),
      });
    case 'download-request':
      return new DownloadController({
        ...own,
        stores,
        buckets: locationBuckets(common, stores.directory),
        unsavedOperations: {
          save: async (owner, signal) => {
            const opened = owner.kind === 'Restore' ? restores : backups;
            await opened?.unsavedOperations.save(owner, signal);
          },
        },
      });
    case 'server-status-request':
      return new StatusRequestController({
        client,
        logger,
        namespace,
        // Velero's version for its CLI, and our own.
        serverVersion: `${VELERO_VERSION}+longshore.${VERSION}`,
        plugins: async () => (await common.plugins?.list()) ?? [],
      });
  }
}

const seriesOf = ({ metrics, deletionMetrics }: OpenedBackups) => ({
  exist: (schedules: readonly string[]) => {
    metrics.exist(schedules);
    deletionMetrics.exist(schedules);
  },
  begin: (schedule: string) => {
    metrics.begin(schedule);
    deletionMetrics.begin(schedule);
  },
  end: (schedule: string) => {
    metrics.end(schedule);
    deletionMetrics.end(schedule);
  },
});

const isZero = (text: string): boolean => /^0(?:ns|us|µs|ms|s|m|h)?$/.test(text);

/** As in Velero's flag: 0 means Kopia's own default, one hour. */
function frequencyOf(text: string): string {
  if (isZero(text)) return '1h0m0s';
  durationFlagMs(MAINTAIN_FREQUENCY, text, '1h0m0s');
  // Go has no unit for days.
  return text.replaceAll(/(\d+(?:\.\d+)?)d/g, (_, days: string) => `${Number(days) * 24}h`);
}
