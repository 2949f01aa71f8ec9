import { isMoverServed } from '../agent/index.ts';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { BackupArchive } from '../archive/index.ts';
import {
  type Backup,
  BACKUP_DEFAULTS,
  type BackupDefaults,
  type PolicySummary,
  type ReadAhead,
} from '../backup/index.ts';
import {
  ClusterVolumes,
  loadSnapshotLocations,
  operationTimeoutNs,
} from '../backup-volumes/index.ts';
import { CodedError, type Logger, type Nanoseconds, systemClock } from '../base/index.ts';
import { openBucket } from '../blob/index.ts';
import { environment } from '../config/index.ts';
import { OperationMap } from '../item-operations/index.ts';
import { Discovery, type KubeClient, type PersistentVolumeClaim, PVS } from '../kube/index.ts';
import {
  type Backup as PluginBackup,
  choicesOf,
  globalPoliciesOf,
  namespacesOf,
  ownPoliciesOf,
  readsOf,
  removeLostSnapshots,
} from '../plugin/index.ts';
import {
  BackupController,
  BackupMetrics,
  backupOperationStore,
  ClusterRunner,
  DeletionMetrics,
  FinalizerController,
  HostSessions,
  LocationBuckets,
  OperationMetrics,
  OperationsController,
  ReadOnlyLocations,
  type ServerController,
  type TimeoutOf,
  type UnsavedOperations,
  unsavedOperationsOf,
} from '../server/index.ts';
import {
  ListedVolumes,
  movingRules,
  VolumeHelper,
  type VolumePolicies,
  withGlobalPolicies,
} from '../volume-policy/index.ts';
import type { Common } from './server-common.ts';
import { deletionController } from './server-deletion.ts';
import { durationFlagMs, UsageError } from './usage-error.ts';

export interface BackupFlags {
  concurrentBackups: string;
  itemBlockWorkerCount: string;
  itemOperationSyncFrequency: string;
  defaultBackupTtl: string;
  defaultItemOperationTimeout: string;
  fsBackupTimeout: string;
  pluginItemOperationTimeout?: readonly string[];
  resourceTimeout: string;
  defaultVolumesToFsBackup?: boolean | string;
  defaultSnapshotMoveData?: boolean | string;
  defaultVolumeSnapshotLocations?: string;
  volumeGroupSnapshotLabelKey: string;
  globalBackupVolumePoliciesConfigmap?: string;
  logLevel: string;
  logFormat: string;
  features?: string;
}

export interface BackupSettings {
  readonly runningMax: number;
  readonly workers: number;
  readonly operationsEveryMs: number;
  readonly operationTimeoutNs: Nanoseconds;
  readonly podVolumeTimeoutMs: number;
  /** Of operations of single actions, by their names. */
  readonly timeoutsOfActions: ReadonlyMap<string, Nanoseconds>;
  readonly resourceTimeoutMs: number;
  readonly defaults: BackupDefaults;
  readonly globalPolicies: string | undefined;
  readonly hasCsi: boolean;
  readonly logLevel: string;
  readonly logFormat: string;
  /** Whether this server deletes backups as well, and whether it makes them. */
  readonly isDeletionHere?: boolean;
  readonly isMadeHere?: boolean;
}

/** Throws `UsageError`. */
export function backupSettingsOf(flags: BackupFlags): BackupSettings {
  return {
    runningMax: Math.max(1, wholeOf('--concurrent-backups', flags.concurrentBackups)),
    workers: Math.max(1, wholeOf('--item-block-worker-count', flags.itemBlockWorkerCount)),
    operationsEveryMs: durationFlagMs(
      '--item-operation-sync-frequency',
      flags.itemOperationSyncFrequency,
      '10s',
    ),
    operationTimeoutNs:
      BigInt(
        durationFlagMs(
          '--default-item-operation-timeout',
          flags.defaultItemOperationTimeout,
          '4h0m0s',
        ),
      ) * 1_000_000n,
    podVolumeTimeoutMs: durationFlagMs('--fs-backup-timeout', flags.fsBackupTimeout, '4h0m0s'),
    timeoutsOfActions: actionTimeouts(flags.pluginItemOperationTimeout ?? []),
    resourceTimeoutMs: durationFlagMs('--resource-timeout', flags.resourceTimeout, '10m0s'),
    defaults: {
      ...BACKUP_DEFAULTS,
      ttl: durationText('--default-backup-ttl', flags.defaultBackupTtl),
      itemOperationTimeout: durationText(
        '--default-item-operation-timeout',
        flags.defaultItemOperationTimeout,
      ),
      resourceTimeout: flags.resourceTimeout,
      volumeGroupSnapshotLabelKey: flags.volumeGroupSnapshotLabelKey,
      defaultVolumesToFsBackup: isOn(
        '--default-volumes-to-fs-backup',
        flags.defaultVolumesToFsBackup,
      ),
      snapshotMoveData: isOn('--default-snapshot-move-data', flags.defaultSnapshotMoveData),
      snapshotLocations: locationsOf(flags.defaultVolumeSnapshotLocations ?? ''),
    },
    globalPolicies: flags.globalBackupVolumePoliciesConfigmap,
    hasCsi: flags.features?.split(',').includes('EnableCSI') === true,
    ...{ logLevel: flags.logLevel, logFormat: flags.logFormat },
  };
}

function wholeOf(flag: string, text: string): number {
  if (/^\d{1,6}$/.test(text)) return Number(text);
  throw new UsageError(`${flag} "${text}" is not a whole number`);
}

/** Of flags such as `longshore.io/csi-pvc-backupper=12h`. */
function actionTimeouts(texts: readonly string[]): Map<string, Nanoseconds> {
  const timeouts = new Map<string, Nanoseconds>();
  for (const text of texts) {
    const at = text.lastIndexOf('=');
    const [action, duration] = [text.slice(0, Math.max(0, at)), text.slice(at + 1)];
    const flag = '--plugin-item-operation-timeout';
    if (!/^[^/=\s]+\/[^/=\s]+$/.test(action)) {
      const example = 'longshore.io/csi-pvc-backupper=12h';
      throw new UsageError(
        `${flag} "${text}" is not the name of an action and a duration, as in ${example}`,
      );
    }
    if (timeouts.has(action)) throw new UsageError(`${flag} names ${action} twice`);
    timeouts.set(action, BigInt(durationFlagMs(`${flag} ${action}`, duration, '12h')) * 1_000_000n);
  }
  return timeouts;
}

function durationText(flag: string, text: string): string {
  durationFlagMs(flag, text, '4h0m0s');
  return text;
}

export function isOn(flag: string, value: boolean | string | undefined): boolean {
  if (value === undefined || typeof value === 'boolean') return value === true;
  if (['true', '1', 't'].includes(value)) return true;
  if (['false', '0', 'f'].includes(value)) return false;
  throw new UsageError(`${flag} "${value}" is neither true nor false`);
}

function locationsOf(text: string): Record<string, string> {
  const pairs = text.split(',').filter((part) => part.trim() !== '');
  return Object.fromEntries(
    pairs.map((pair) => {
      const [provider = '', location = '', ...more] = pair.trim().split(':');
      if (provider !== '' && location !== '' && more.length === 0) return [provider, location];
      const text = `--default-volume-snapshot-locations "${pair}" is not a provider and a location, as in aws:default`;
      throw new UsageError(text);
    }),
  );
}

export type BackupControllerName =
  'backup' | 'backup-operations' | 'backup-finalizer' | 'backup-deletion';

export interface OpenedBackups {
  readonly metrics: BackupMetrics;
  readonly deletionMetrics: DeletionMetrics;
  readonly controllers: Readonly<Record<BackupControllerName, ServerController>>;
  readonly unsavedOperations: UnsavedOperations;
}

const GLOBAL_POLICIES = 'velero.io/global-backup-volume-policy-configmap';

/** What the controller of backups needs. Throws where the policies for all backups cannot be read: no backup is then what was asked for. */
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
  const operations = new OperationMap({ store, logger });
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
  const policiesOf = (backup: Backup): Promise<VolumePolicies | undefined> =>
    serverPoliciesOf(client, backup, settings.globalPolicies);
  if (settings.globalPolicies !== undefined) {
    const probe = { metadata: { namespace, name: '' }, spec: {} } as Backup;
    await serverPoliciesOf(client, probe, settings.globalPolicies, { isPatient: false });
  }
  const snapshotLocations = (names: readonly string[], signal: AbortSignal) =>
    loadSnapshotLocations(names, {
      ...{ client, namespace, signal },
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
    // As the action for PVCs asks for it.
    claim: (pvc) => {
      const { volumeName = '' } = (pvc as PersistentVolumeClaim).spec;
      if (settings.hasCsi) reads.begin(PVS, { name: volumeName });
    },
  };
  const readOnly = new ReadOnlyLocations(client, namespace);
  let runner: Promise<ClusterRunner> | undefined;
  const controller = new BackupController({
    // What it writes is compared with the API server's times, and expires by its clock; a node's own may be days behind.
    clock: {
      nowNs: () => client.clock.nowNs(),
      monotonicNs: () => systemClock.monotonicNs?.() ?? 0n,
    },
    ...{ client, logger, namespace, host: common.host, backups, buckets, sessions, operations },
    discovery: theDiscovery,
    snapshotLocations,
    removeSnapshots: ({ metadata: { name, uid } }, options) =>
      removeLostSnapshots({ client, logger }, { namespace, name, uid }, options),
    runner: () => {
      runner ??= theDiscovery().then(
        (found) =>
          new ClusterRunner({
            // Runs alone: whoever ends a backup must not see it as it was before its last change.
            ...{
              client: reads.client,
              readAhead,
              discovery: found,
              buckets,
              sessions,
              operations,
              directory,
              logger,
            },
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
              const spec = backup.spec as Backup['spec'] & { volumeSnapshotLocations?: string[] };
              const names = spec.volumeSnapshotLocations ?? [];
              const locations = await snapshotLocations(names, signal);
              return new ClusterVolumes({
                ...{ client: patient, backup, signal, hasCsi: settings.hasCsi },
                ...{ log: log.results, tryLog: log.ofTry },
                helper: new VolumeHelper({
                  policies,
                  ...choicesOf(backup as unknown as PluginBackup),
                  backupExcludePvc: false,
                  volumes: new ListedVolumes(readsOf(patient, { signal }), {
                    namespaces: namespacesOf(backup as unknown as PluginBackup),
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
            ...{ logLevel: settings.logLevel, logFormat: settings.logFormat },
            workers: settings.workers,
            timeoutNsOf,
          }),
      );
      runner.catch(() => (runner = undefined));
      return runner;
    },
    defaults: settings.defaults,
    loadPolicies: async (backup): Promise<PolicySummary | undefined> => {
      const policies = await policiesOf(backup);
      if (!policies) return undefined;
      const hasFineFilters =
        policies.namespacedFilterPolicies !== undefined ||
        policies.clusterScopedFilterPolicy !== undefined;
      return {
        ...{ hasFineFilters, movingRules: movingRules(policies) },
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
    ...{ client, logger, host: common.host, buckets, sessions, map: operations },
    ...{ scratch: directory, backups },
  };
  return {
    ...{ metrics, deletionMetrics },
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
        ...{ buckets, sessions, discovery: theDiscovery, snapshotLocations },
        ...{ directory, isMadeHere: settings.isMadeHere !== false, metrics: deletionMetrics },
      }),
    },
    unsavedOperations: unsavedOperationsOf(operations),
  };
}

/**
 * The policies of a backup, with those for all backups that the server was given. Throws `NO_VOLUME_POLICY`, and `BAD_VOLUME_POLICY`.
 */
export async function serverPoliciesOf(
  client: KubeClient,
  backup: Backup,
  globalPolicies: string | undefined,
  options: { readonly isPatient?: boolean } = {},
): Promise<VolumePolicies | undefined> {
  const given = noted(backup, globalPolicies);
  const own = await ownPoliciesOf(client, given, options);
  return withGlobalPolicies(own, await globalPoliciesOf(client, given, options));
}

/** A name that is mistyped would change nothing, without a word. Not waited for: a plugin may hang. */
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
    // That its plugins could not be loaded is said by whoever needs them.
  }
}

/** Buckets of locations, whose credentials are in a folder of their own. */
export function locationBuckets(
  { client, namespace, logger }: Pick<Common, 'client' | 'namespace' | 'logger'>,
  directory: string,
): LocationBuckets {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  return new LocationBuckets({
    ...{ client, namespace, directory, logger },
    defaultCredentials: (kind) => environment.credentialsFile(kind),
    openBucket: (location) => openBucket(location),
  });
}

/** The policies for all backups, where plugins look for them. */
function noted({ metadata, ...backup }: Backup, globalPolicies: string | undefined): PluginBackup {
  const annotations = {
    ...metadata.annotations,
    ...(globalPolicies !== undefined && { [GLOBAL_POLICIES]: globalPolicies }),
  };
  return { ...backup, metadata: { ...metadata, annotations } } as unknown as PluginBackup;
}
