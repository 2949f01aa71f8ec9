import { isMoverServed } from '../../agent/index.ts';
import { join } from 'node:path';
import { BackupArchive } from '../../archive/index.ts';
import type { PolicySummary, ReadAhead } from '../../backup/index.ts';
import {
  ClusterVolumes,
  loadSnapshotLocations,
  operationTimeoutNs,
} from '../../backup-volumes/index.ts';
import { CodedError, createLimiter, type Logger } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { OperationMap } from '../../item-operations/index.ts';
import { type Backup, Discovery, type PersistentVolumeClaim, PVS } from '../../kube/index.ts';
import {
  choicesOf,
  namespacesOf,
  PinnedPolicies,
  readsOf,
  removeLostSnapshots,
} from '../../plugin/index.ts';
import {
  BackupController,
  BackupMetrics,
  backupOperationStore,
  ClusterRunner,
  DeletionController,
  type DeletionControllerOptions,
  DeletionMetrics,
  FinalizerController,
  type ForgetSnapshots,
  HostSessions,
  OperationMetrics,
  OperationsController,
  ReadOnlyLocations,
  type ServerController,
  type TimeoutOf,
  type UnsavedOperations,
  unsavedOperationsOf,
} from '../../server/index.ts';
import { forgetSnapshots } from '../../snapshot/index.ts';
import {
  ListedVolumes,
  movingRules,
  VolumeHelper,
  type VolumePolicies,
} from '../../volume-policy/index.ts';
import { openContext } from '../context.ts';
import type { BackupSettings } from './backup-settings.ts';
import { locationBuckets } from './buckets.ts';
import { serverClock } from './clock.ts';
import type { Common } from './common.ts';
import { GLOBAL_POLICIES, serverPoliciesOf } from './policies.ts';

export type BackupControllerName =
  'backup' | 'backup-operations' | 'backup-finalizer' | 'backup-deletion';

export interface OpenedBackups {
  readonly metrics: BackupMetrics;
  readonly deletionMetrics: DeletionMetrics;
  readonly controllers: Readonly<Record<BackupControllerName, ServerController>>;
  readonly unsavedOperations: UnsavedOperations;
}

/**
 * Opens the dependencies of the backup controllers. Throws if the policies for all backups are
 * unreadable, because every backup would be wrong without them.
 */
export async function openBackups(
  common: Common,
  { features }: { readonly features?: string },
  settings: BackupSettings,
  isServed = (mover: string): Promise<boolean | undefined> =>
    isMoverServed(common.client, common.namespace, mover),
): Promise<OpenedBackups> {
  const { client, logger, namespace, registry, plugins, backups, reads } = common;
  const directory = join(common.directory, 'backups');
  const buckets = locationBuckets(common, directory);
  const metrics = new BackupMetrics(registry, {
    backups: () => backups.list(),
    hasCsi: settings.hasCsi,
  });
  const deletionMetrics = new DeletionMetrics(registry);
  const store = backupOperationStore(client, namespace, buckets);
  const clock = serverClock(client);
  const operations = new OperationMap({ store, logger, clock });
  const sessions = new HostSessions(
    reads.client,
    () => {
      if (!plugins) throw new CodedError('PLUGIN_FOLDER', 'no plugins were opened');
      return plugins.host();
    },
    logger,
  );
  let discovery: Promise<Discovery> | undefined;
  const hasAllVersions = features?.split(',').includes('EnableAPIGroupVersions') === true;
  const theDiscovery = (): Promise<Discovery> => {
    discovery ??= Discovery.open(client, { hasAllVersions, logger });
    discovery.catch(() => (discovery = undefined));
    return discovery;
  };
  const pinned = plugins?.policies ?? new PinnedPolicies();
  const readPolicies = (backup: Backup): Promise<VolumePolicies | undefined> =>
    serverPoliciesOf(client, backup, settings.globalPolicies);
  const policiesOf = (backup: Backup): Promise<VolumePolicies | undefined> =>
    pinned.of(backup.metadata.uid, () => readPolicies(backup));
  if (settings.globalPolicies !== undefined) {
    const probe = { metadata: { namespace, name: '' }, spec: {} } as Backup;
    await serverPoliciesOf(client, probe, settings.globalPolicies, { isPatient: false });
  }
  const snapshotLocations = (names: readonly string[], signal: AbortSignal) =>
    loadSnapshotLocations(names, {
      client,
      namespace,
      signal,
      directory: join(directory, 'snapshot-credentials'),
    });
  if (settings.timeoutsOfActions.size > 0 && plugins) {
    void warnOfUnknownActions(settings.timeoutsOfActions.keys(), plugins, logger);
  }
  const timeouts = {
    ofActions: settings.timeoutsOfActions,
    podVolumeMs: settings.podVolumeTimeoutMs,
  };
  const timeoutNsOf: TimeoutOf<Backup> = (action, backup, askedNs) =>
    operationTimeoutNs(action, backup, askedNs, timeouts);
  const readAhead: ReadAhead = {
    object: (resource, ref) => {
      reads.begin(resource, ref, { isExact: true });
    },
    // The action for PVCs reads the volume in the same way.
    claim: (pvc) => {
      const { volumeName = '' } = (pvc as PersistentVolumeClaim).spec;
      if (settings.hasCsi) reads.begin(PVS, { name: volumeName });
    },
  };
  const readOnly = new ReadOnlyLocations(client, namespace);
  let runner: Promise<ClusterRunner> | undefined;
  const controller = new BackupController({
    clock,
    client,
    logger,
    namespace,
    host: common.host,
    backups,
    buckets,
    sessions,
    operations,
    discovery: theDiscovery,
    snapshotLocations,
    removeSnapshots: ({ metadata: { name, uid } }, options) =>
      removeLostSnapshots({ client, logger }, { namespace, name, uid }, options),
    runner: () => {
      runner ??= theDiscovery().then(
        (found) =>
          new ClusterRunner({
            // Only runs use it. The controllers that end a backup must not read a stale, prefetched
            // Backup.
            client: reads.client,
            readAhead,
            discovery: found,
            buckets,
            sessions,
            operations,
            directory,
            logger,
            clock,
            archiveOf: (bucket) => new BackupArchive(bucket, { logger }),
            openVolumes: async ({
              backup,
              session,
              log,
              signal,
              willSnapshot,
              client: patient,
            }) => {
              const policies = await policiesOf(backup);
              const names = backup.spec.volumeSnapshotLocations ?? [];
              const locations = await snapshotLocations(names, signal);
              return new ClusterVolumes({
                client: patient,
                backup,
                signal,
                hasCsi: settings.hasCsi,
                log: log.results,
                tryLog: log.ofTry,
                helper: new VolumeHelper({
                  policies,
                  ...choicesOf(backup),
                  backupExcludePvc: false,
                  volumes: new ListedVolumes(readsOf(patient, { signal }), {
                    namespaces: namespacesOf(backup),
                  }),
                }),
                locations,
                willSnapshot,
                snapshotters: (provider, config) => session.snapshotter(provider, config),
                resourceTimeoutMs: settings.resourceTimeoutMs,
                podVolumeTimeoutMs: settings.podVolumeTimeoutMs,
              });
            },
            loadPolicies: policiesOf,
            logLevel: settings.logLevel,
            logFormat: settings.logFormat,
            workers: settings.workers,
            trustsMustInclude: settings.trustsMustInclude,
            timeoutNsOf,
          }),
      );
      runner.catch(() => (runner = undefined));
      return runner;
    },
    defaults: settings.defaults,
    loadPolicies: async (backup): Promise<PolicySummary | undefined> => {
      const policies = await pinned.renew(backup.metadata.uid, () => readPolicies(backup));
      if (!policies) return undefined;
      const hasFineFilters =
        policies.namespacedFilterPolicies !== undefined ||
        policies.clusterScopedFilterPolicy !== undefined;
      return {
        hasFineFilters,
        movingRules: movingRules(policies),
        hasIncludeExclude: policies.includeExcludePolicy !== undefined,
      };
    },
    isServed,
    annotations: {
      ...(settings.globalPolicies !== undefined && { [GLOBAL_POLICIES]: settings.globalPolicies }),
    },
    isDeletedElsewhere: settings.isDeletionHere === true,
    runningMax: settings.runningMax,
    metrics,
  });
  const shared = {
    client,
    logger,
    host: common.host,
    buckets,
    sessions,
    map: operations,
    scratch: directory,
    backups,
  };
  return {
    metrics,
    deletionMetrics,
    controllers: {
      backup: controller,
      'backup-operations': new OperationsController({
        ...shared,
        metrics: common.operationMetrics ?? new OperationMetrics({ registry, clock: client.clock }),
        syncFrequencyMs: settings.operationsEveryMs,
        isReadOnly: (location, signal) => readOnly.isReadOnly(location, signal),
        timeoutNs: settings.operationTimeoutNs,
        timeoutNsOf,
      }),
      'backup-finalizer': new FinalizerController({
        ...shared,
        onTarball: (backup, sizeBytes) => {
          metrics.tarball(backup, sizeBytes);
        },
        discovery: async (signal) => {
          const found = await theDiscovery();
          await found.refresh({ signal });
          return found;
        },
      }),
      'backup-deletion': deletionController(common, {
        buckets,
        sessions,
        discovery: theDiscovery,
        snapshotLocations,
        directory,
        isMadeHere: settings.isMadeHere !== false,
        metrics: deletionMetrics,
      }),
    },
    unsavedOperations: unsavedOperationsOf(operations),
  };
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

/** For one open repository, because the server has other work too. Our choice. */
const MEMORY = '256MiB';
/** Maximum number of open repositories in all locations. Our choice. */
const OPEN_AT_ONCE = 2;

type Parts = Pick<
  DeletionControllerOptions,
  | 'buckets'
  | 'sessions'
  | 'discovery'
  | 'snapshotLocations'
  | 'directory'
  | 'isMadeHere'
  | 'metrics'
>;

/** The controller of deletions, which shares the dependencies of backups. */
function deletionController(common: Common, parts: Parts): DeletionController {
  const { client, logger, namespace, host, backups } = common;
  const places = createLimiter(OPEN_AT_ONCE);
  const forget: ForgetSnapshots = ({ location, password }, ids, { signal, mayForget }) =>
    places.run(async () => {
      signal.throwIfAborted();
      // Velero's client name in all its repositories. No disk cache, because each repository is
      // opened once per backup.
      const options = { repo: location, client: 'default@default', memoryLimit: MEMORY };
      await using opened = await openContext(options, { password, logger, cache: false });
      return await forgetSnapshots(opened.repository, ids, { signal, mayForget });
    });
  return new DeletionController({
    client,
    logger,
    namespace,
    host,
    writers: backups.writers,
    ...parts,
    forget,
    defaultCredentials: (kind) => environment.credentialsFile(kind),
  });
}
