import { isMoverServed } from '../../agent/index.ts';
import { createLimiter, type Logger } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { removeLostSnapshots } from '../../plugin/index.ts';
import { forgetSnapshots } from '../../snapshot/index.ts';
import {
  BackupController,
  type BackupMetrics,
  DeletionController,
  type DeletionMetrics,
  FinalizerController,
  type ForgetSnapshots,
  OperationMetrics,
  OperationsController,
  ReadOnlyLocations,
  type ServerController,
  type UnsavedOperations,
  unsavedOperationsOf,
} from '../index.ts';
import { type BackupParts, backupParts } from './backup-parts.ts';
import { openRunner } from './backup-runner.ts';
import { type Common, lazily, serverClock } from './common.ts';
import type { BackupControllerName } from './controller-names.ts';
import { GLOBAL_POLICIES } from './policies.ts';
import type { BackupSettings } from './settings.ts';

export interface OpenedBackups {
  readonly metrics: BackupMetrics;
  readonly deletionMetrics: DeletionMetrics;
  readonly controllers: Readonly<Record<BackupControllerName, ServerController>>;
  readonly unsavedOperations: UnsavedOperations;
}

type IsServed = (mover: string) => Promise<boolean | undefined>;

/**
 * Opens the dependencies of the backup controllers. Throws if the policies for all backups are
 * unreadable, because every backup would be wrong without them.
 */
export async function openBackups(
  common: Common,
  { features }: { readonly features?: string | undefined },
  settings: BackupSettings,
  isServed: IsServed = (mover) => isMoverServed(common.client, common.namespace, mover),
): Promise<OpenedBackups> {
  const { logger, plugins } = common;
  const parts = backupParts(common, features, settings);
  await parts.policies.check();
  if (settings.timeoutsOfActions.size > 0 && plugins) {
    void warnOfUnknownActions(settings.timeoutsOfActions.keys(), plugins, logger);
  }
  const { metrics, deletionMetrics, operations } = parts;
  return {
    metrics,
    deletionMetrics,
    controllers: {
      backup: backupController(parts, isServed),
      'backup-operations': operationsController(parts),
      'backup-finalizer': finalizerController(parts),
      'backup-deletion': deletionController(parts),
    },
    unsavedOperations: unsavedOperationsOf(operations),
  };
}

function backupController(parts: BackupParts, isServed: IsServed): BackupController {
  const { common, settings, buckets, sessions, operations, policies, metrics } = parts;
  const { client, logger, namespace, host, backups } = common;
  return new BackupController({
    clock: serverClock(client),
    client,
    logger,
    namespace,
    host,
    backups,
    buckets,
    sessions,
    operations,
    discovery: parts.discovery,
    snapshotLocations: parts.snapshotLocations,
    removeSnapshots: ({ metadata: { name, uid } }, options) =>
      removeLostSnapshots({ client, logger }, { namespace, name, uid }, options),
    runner: lazily(() => openRunner(parts)),
    defaults: settings.defaults,
    loadPolicies: (backup) => policies.renew(backup),
    isServed,
    annotations: {
      ...(settings.globalPolicies !== undefined && { [GLOBAL_POLICIES]: settings.globalPolicies }),
    },
    isDeletedElsewhere: settings.isDeletionHere === true,
    runningMax: settings.runningMax,
    metrics,
  });
}

/** Dependencies of the controllers that end a backup. */
const afterRun = ({ common, directory, buckets, sessions, operations }: BackupParts) => ({
  client: common.client,
  logger: common.logger,
  host: common.host,
  buckets,
  sessions,
  map: operations,
  scratch: directory,
  backups: common.backups,
});

function operationsController(parts: BackupParts): OperationsController {
  const { client, namespace, registry, operationMetrics } = parts.common;
  const readOnly = new ReadOnlyLocations(client, namespace);
  return new OperationsController({
    ...afterRun(parts),
    metrics: operationMetrics ?? new OperationMetrics({ registry, clock: client.clock }),
    syncFrequencyMs: parts.settings.operationsEveryMs,
    isReadOnly: (location, signal) => readOnly.isReadOnly(location, signal),
    timeoutNs: parts.settings.operationTimeoutNs,
    timeoutNsOf: parts.timeoutNsOf,
  });
}

function finalizerController(parts: BackupParts): FinalizerController {
  return new FinalizerController({
    ...afterRun(parts),
    onTarball: (backup, sizeBytes) => {
      parts.metrics.tarball(backup, sizeBytes);
    },
    discovery: async (signal) => {
      const found = await parts.discovery();
      await found.refresh({ signal });
      return found;
    },
  });
}

/** For one open repository, because the server has other work too. Our choice. */
const MEMORY = '256MiB';
/** Maximum number of open repositories in all locations. Our choice. */
const OPEN_AT_ONCE = 2;

function deletionController(parts: BackupParts): DeletionController {
  const { client, logger, namespace, host, backups, openRepository } = parts.common;
  const places = createLimiter(OPEN_AT_ONCE);
  const forget: ForgetSnapshots = ({ location, password }, ids, { signal, mayForget }) =>
    places.run(async () => {
      signal.throwIfAborted();
      await using opened = await openRepository(location, { password, memoryLimit: MEMORY });
      return await forgetSnapshots(opened.repository, ids, { signal, mayForget });
    });
  return new DeletionController({
    client,
    logger,
    namespace,
    host,
    writers: backups.writers,
    buckets: parts.buckets,
    sessions: parts.sessions,
    discovery: parts.discovery,
    snapshotLocations: parts.snapshotLocations,
    directory: parts.directory,
    isMadeHere: parts.settings.isMadeHere !== false,
    metrics: parts.deletionMetrics,
    forget,
    defaultCredentials: (kind) => environment.credentialsFile(kind),
  });
}

/** Warns of mistyped names, which would have no effect. Not awaited, because a plugin may hang. */
export async function warnOfUnknownActions(
  named: Iterable<string>,
  plugins: { host(): Promise<{ readonly plugins: readonly { readonly name: string }[] }> },
  logger: Logger,
): Promise<void> {
  try {
    const host = await plugins.host();
    const known = new Set(host.plugins.map(({ name }) => name));
    const unknown = [...named].filter((name) => !known.has(name));
    if (unknown.length === 0) return;
    const text = '--plugin-item-operation-timeout names actions that no plugin has';
    logger.warn({ unknown, known: [...known] }, text);
  } catch {
    // The code that needs the plugins reports the error.
  }
}
