import { join } from 'node:path';
import { mkdirSync } from 'node:fs';
import { BackupArchive } from '../../archive/index.ts';
import { loadSnapshotLocations } from '../../backup-volumes/index.ts';
import { CodedError } from '../../base/index.ts';
import { OperationMap } from '../../item-operations/index.ts';
import { type ConfigMap, DEPLOYMENTS, Discovery, type Restore } from '../../kube/index.ts';
import {
  parsePriorities,
  ResourceModifiers,
  RESTORE_PRIORITIES,
  type RestorePolicySummary,
  type RestorePriorities,
} from '../../restore/index.ts';
import {
  ClusterRestoreRunner,
  FileWriters,
  HostRestoreSessions,
  OperationMetrics,
  RestoreController,
  RestoreFinalizerController,
  RestoreLocations,
  RestoreMetrics,
  restoreOperationStore,
  RestoreOperationsController,
  type ServerController,
  SharedRestores,
  type TimeoutOf,
  type UnsavedOperations,
  unsavedOperationsOf,
} from '../../server/index.ts';
import { parsePolicyConfigMap } from '../../volume-policy/index.ts';
import type { BackupSettings } from './backup-settings.ts';
import { locationBuckets } from './buckets.ts';
import { serverClock } from './clock.ts';
import type { Common } from './common.ts';
import type { RestoreControllerName } from './controllers.ts';
import { durationFlagMs, UsageError } from '../usage-error.ts';
import { VERSION } from '../version.ts';

export interface RestoreFlags {
  restoreResourcePriorities?: string;
  terminatingResourceTimeout?: string;
  deployment: string;
}

export interface RestoreSettings {
  readonly priorities: RestorePriorities;
  readonly terminatingMs: number;
  /** The Deployment whose image has the helper for waiting pods. */
  readonly deployment: string;
}

/** Throws `UsageError`. */
export function restoreSettingsOf(flags: RestoreFlags): RestoreSettings {
  const { restoreResourcePriorities: named, terminatingResourceTimeout: timeout = '10m0s' } = flags;
  const terminatingMs = durationFlagMs('--terminating-resource-timeout', timeout, '10m0s');
  const { deployment } = flags;
  try {
    const priorities = named === undefined ? RESTORE_PRIORITIES : parsePriorities(named);
    return { priorities, terminatingMs, deployment };
  } catch (error) {
    throw new UsageError(`--restore-resource-priorities: ${(error as Error).message}`);
  }
}

export interface OpenedRestores {
  readonly controllers: Readonly<Record<RestoreControllerName, ServerController>>;
  readonly unsavedOperations: UnsavedOperations;
}

/** Dependencies of the restore controllers, which share a map of operations and a watch. */
export function openRestores(
  common: Common,
  { features }: { readonly features?: string },
  settings: RestoreSettings &
    Pick<
      BackupSettings,
      | 'resourceTimeoutMs'
      | 'operationsEveryMs'
      | 'operationTimeoutNs'
      | 'timeoutsOfActions'
      | 'trustsMustInclude'
      | 'logLevel'
      | 'logFormat'
    > & { readonly itemOperationTimeout: string },
): OpenedRestores {
  const { client, logger, namespace, host, registry, plugins } = common;
  const directory = join(common.directory, 'restores');
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const buckets = locationBuckets(common, directory);
  const restores = new SharedRestores({ client, logger, namespace });
  const locations = new RestoreLocations(client, namespace);
  const writers = new FileWriters();
  const places = { buckets, locations, writers };
  const store = restoreOperationStore({ ...places, client, namespace, logger });
  const clock = serverClock(client);
  const operations = new OperationMap({ store, logger, clock });
  const sessions = new HostRestoreSessions(() => {
    if (!plugins) throw new CodedError('PLUGIN_FOLDER', 'no plugins were opened');
    return plugins.host();
  });
  const hasAllVersions = features?.split(',').includes('EnableAPIGroupVersions') === true;
  const { resourceTimeoutMs, priorities, terminatingMs, logLevel, logFormat } = settings;
  const { trustsMustInclude } = settings;
  const resourceTimeoutNs = BigInt(resourceTimeoutMs) * 1_000_000n;
  const timeoutNsOf: TimeoutOf<Restore> = (action, _restore, askedNs) =>
    settings.timeoutsOfActions.get(action) ?? askedNs;
  let runner: Promise<ClusterRestoreRunner> | undefined;
  const theRunner = (): Promise<ClusterRestoreRunner> => {
    runner ??= Discovery.open(client, { hasAllVersions, logger }).then(
      (discovery) =>
        new ClusterRestoreRunner({
          client,
          discovery,
          buckets,
          sessions,
          operations,
          directory,
          logger,
          clock,
          hasAllVersions,
          archiveOf: (bucket) => new BackupArchive(bucket, { logger }),
          snapshotLocations: (names, signal) =>
            loadSnapshotLocations(names, {
              client,
              namespace,
              signal,
              directory: join(directory, 'snapshot-credentials'),
            }),
          helper: {
            image: async ({ signal }) => {
              const ref = { namespace, name: settings.deployment };
              const { spec } = await client.get(DEPLOYMENTS, ref, { signal });
              return spec.template.spec.containers[0]?.image ?? '';
            },
            tag: VERSION,
          },
          readPolicies: parsePolicyConfigMap,
          priorities,
          terminatingMs,
          resourceTimeoutMs,
          logLevel,
          logFormat,
          timeoutNsOf,
          trustsMustInclude,
        }),
    );
    runner.catch(() => (runner = undefined));
    return runner;
  };
  const shared = { ...places, client, logger, restores };
  const after = { ...shared, host, map: operations, scratch: directory };
  return {
    controllers: {
      restore: new RestoreController({
        ...shared,
        namespace,
        host,
        operations,
        runner: theRunner,
        validation: {
          itemOperationTimeout: settings.itemOperationTimeout,
          readPolicies: restorePoliciesOf,
          readModifiers: (config) => void ResourceModifiers.fromConfigMap(config),
        },
        metrics: new RestoreMetrics(registry, () => restores.list()),
        clock,
      }),
      'restore-operations': new RestoreOperationsController({
        ...after,
        sessions,
        metrics: common.operationMetrics ?? new OperationMetrics({ registry, clock: client.clock }),
        syncFrequencyMs: settings.operationsEveryMs,
        timeoutNs: settings.operationTimeoutNs,
        timeoutNsOf,
        resourceTimeoutNs,
      }),
      'restore-finalizer': new RestoreFinalizerController({
        ...after,
        namespace,
        resourceTimeoutNs,
        hookTimeoutNs: settings.operationTimeoutNs,
      }),
    },
    unsavedOperations: unsavedOperationsOf(operations),
  };
}

/** The parts of a Restore's policies that apply only to backups. */
export function restorePoliciesOf(config: ConfigMap): RestorePolicySummary {
  const policies = parsePolicyConfigMap(config);
  return {
    hasVolumePolicies: policies.rules.length > 0,
    hasIncludeExclude: policies.includeExcludePolicy !== undefined,
  };
}
