import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { BackupArchive } from '../../archive/index.ts';
import { loadSnapshotLocations } from '../../backup-volumes/index.ts';
import { CodedError } from '../../base/index.ts';
import { OperationMap } from '../../item-operations/index.ts';
import { type ConfigMap, DEPLOYMENTS, Discovery, type Restore } from '../../kube/index.ts';
import { ResourceModifiers, type RestorePolicySummary } from '../../restore/index.ts';
import { parsePolicyConfigMap } from '../../volume-policy/index.ts';
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
} from '../index.ts';
import { type Common, hasAllVersions, lazily, locationBuckets, serverClock } from './common.ts';
import type { RestoreControllerName } from './controller-names.ts';
import type { BackupSettings, RestoreSettings } from './settings.ts';

export interface OpenedRestores {
  readonly controllers: Readonly<Record<RestoreControllerName, ServerController>>;
  readonly unsavedOperations: UnsavedOperations;
}

type Settings = RestoreSettings & BackupSettings;

/** Dependencies of the restore controllers, which share a map of operations and a watch. */
export function openRestores(
  common: Common,
  { features }: { readonly features?: string | undefined },
  settings: Settings,
): OpenedRestores {
  const parts = partsOf(common, hasAllVersions(features), settings);
  const { operations } = parts;
  return {
    controllers: {
      restore: restoreController(parts),
      'restore-operations': operationsController(parts),
      'restore-finalizer': new RestoreFinalizerController({
        ...afterRun(parts),
        namespace: common.namespace,
        resourceTimeoutNs: resourceTimeoutNs(settings),
        hookTimeoutNs: settings.operationTimeoutNs,
      }),
    },
    unsavedOperations: unsavedOperationsOf(operations),
  };
}

type RestoreParts = ReturnType<typeof partsOf>;

function partsOf(common: Common, allVersions: boolean, settings: Settings) {
  const { client, logger, namespace, plugins } = common;
  const directory = join(common.directory, 'restores');
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const places = {
    buckets: locationBuckets(common, directory),
    locations: new RestoreLocations(client, namespace),
    writers: new FileWriters(),
  };
  const store = restoreOperationStore({ ...places, client, namespace, logger });
  const timeoutNsOf: TimeoutOf<Restore> = (action, _restore, askedNs) =>
    settings.timeoutsOfActions.get(action) ?? askedNs;
  return {
    common,
    settings,
    directory,
    places,
    allVersions,
    timeoutNsOf,
    restores: new SharedRestores({ client, logger, namespace }),
    operations: new OperationMap({ store, logger, clock: serverClock(client) }),
    sessions: new HostRestoreSessions(() => {
      if (!plugins) throw new CodedError('PLUGIN_FOLDER', 'no plugins were opened');
      return plugins.host();
    }),
  };
}

const shared = ({ common: { client, logger }, places, restores }: RestoreParts) => ({
  ...places,
  client,
  logger,
  restores,
});

/** Dependencies of the controllers that end a restore. */
const afterRun = (parts: RestoreParts) => ({
  ...shared(parts),
  host: parts.common.host,
  map: parts.operations,
  scratch: parts.directory,
});

const resourceTimeoutNs = ({ resourceTimeoutMs }: Settings): bigint =>
  BigInt(resourceTimeoutMs) * 1_000_000n;

async function openRunner(parts: RestoreParts): Promise<ClusterRestoreRunner> {
  const { common, settings, directory, places, operations, sessions, timeoutNsOf } = parts;
  const { client, logger, namespace, version } = common;
  return new ClusterRestoreRunner({
    client,
    discovery: await Discovery.open(client, { hasAllVersions: parts.allVersions, logger }),
    buckets: places.buckets,
    sessions,
    operations,
    directory,
    logger,
    clock: serverClock(client),
    hasAllVersions: parts.allVersions,
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
      tag: version,
    },
    readPolicies: parsePolicyConfigMap,
    priorities: settings.priorities,
    terminatingMs: settings.terminatingMs,
    resourceTimeoutMs: settings.resourceTimeoutMs,
    logLevel: settings.logLevel,
    logFormat: settings.logFormat,
    timeoutNsOf,
    trustsMustInclude: settings.trustsMustInclude,
    contentBytesMax: settings.contentBytesMax,
  });
}

function restoreController(parts: RestoreParts): RestoreController {
  const { common, settings, restores } = parts;
  const { client, namespace, host, registry } = common;
  return new RestoreController({
    ...shared(parts),
    namespace,
    host,
    operations: parts.operations,
    runner: lazily(() => openRunner(parts)),
    validation: {
      itemOperationTimeout: settings.defaults.itemOperationTimeout,
      defaultModifiers: settings.defaultModifiers,
      readPolicies: restorePoliciesOf,
      readModifiers: (config) => void ResourceModifiers.fromConfigMap(config),
    },
    metrics: new RestoreMetrics(registry, () => restores.list()),
    clock: serverClock(client),
  });
}

function operationsController(parts: RestoreParts): RestoreOperationsController {
  const { client, registry, operationMetrics } = parts.common;
  return new RestoreOperationsController({
    ...afterRun(parts),
    sessions: parts.sessions,
    metrics: operationMetrics ?? new OperationMetrics({ registry, clock: client.clock }),
    syncFrequencyMs: parts.settings.operationsEveryMs,
    timeoutNs: parts.settings.operationTimeoutNs,
    timeoutNsOf: parts.timeoutNsOf,
    resourceTimeoutNs: resourceTimeoutNs(parts.settings),
  });
}

/** The parts of a Restore's policies that apply only to backups. */
export function restorePoliciesOf(config: ConfigMap): RestorePolicySummary {
  const policies = parsePolicyConfigMap(config);
  return {
    hasVolumePolicies: policies.rules.length > 0,
    hasIncludeExclude: policies.includeExcludePolicy !== undefined,
  };
}
