import { join } from 'node:path';
import { assert } from '../../base/index.ts';
import { type BlobStorage, openStorage } from '../../blob/index.ts';
import { environment } from '../../config/index.ts';
import {
  DownloadController,
  ExpiryController,
  LocationController,
  type LocationStoreOptions,
  RepositoryController,
  ScheduleController,
  type ServerController,
  StatusRequestController,
  SyncController,
} from '../index.ts';
import { openBackups, type OpenedBackups } from './backups.ts';
import { type Common, locationBuckets } from './common.ts';
import { type ControllerName, OPERATION_CONTROLLERS } from './controller-names.ts';
import { type OpenedRestores, openRestores } from './restores.ts';
import type { ServerSettings } from './settings.ts';

/** Opens the storage of a repository, with retries and limits. `create`: for a new repository. */
export type OpenRepositoryStorage = (
  repo: string,
  options: { readonly create?: boolean },
) => Promise<BlobStorage>;

interface Parts {
  readonly common: Common;
  readonly settings: ServerSettings;
  readonly backups: OpenedBackups | undefined;
  readonly restores: OpenedRestores | undefined;
  readonly openRepositoryStorage: OpenRepositoryStorage;
}

/** The controllers of these names. Throws if the policies for all backups are unreadable. */
export async function openControllers(
  names: readonly ControllerName[],
  common: Common,
  settings: ServerSettings,
  openRepositoryStorage: OpenRepositoryStorage,
): Promise<ServerController[]> {
  const { features } = settings;
  const needsBackups = [...OPERATION_CONTROLLERS, 'backup-deletion' as const].some((name) =>
    names.includes(name),
  );
  const backups = needsBackups
    ? await openBackups(common, { features }, settings.backups)
    : undefined;
  const restores = names.includes('restore')
    ? openRestores(common, { features }, { ...settings.backups, ...settings.restores })
    : undefined;
  const parts: Parts = { common, settings, backups, restores, openRepositoryStorage };
  return names.map((name) => controllerOf(name, parts));
}

function controllerOf(name: ControllerName, parts: Parts): ServerController {
  const { backups, restores } = parts;
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
      return expiryController(parts);
    case 'backup-repo':
      return repositoryController(parts);
    case 'backup-storage-location':
      return locationController(parts);
    case 'backup-sync':
      return syncController(parts);
    case 'schedule':
      return scheduleController(parts);
    case 'download-request':
      return downloadController(parts);
    case 'server-status-request':
      return statusRequestController(parts);
  }
}

const ownOf = ({ common: { client, logger, namespace, host } }: Parts) => ({
  client,
  logger,
  namespace,
  host,
});

const storesOf = (
  { common }: Parts,
  name: ControllerName,
): Omit<LocationStoreOptions, 'client' | 'namespace'> => ({
  directory: join(common.directory, name),
  defaultCredentials: (kind) => environment.credentialsFile(kind),
  openStorage: (location) => openStorage(location),
});

function expiryController({ common, settings }: Parts): ExpiryController {
  const { client, logger, namespace } = common;
  const { expiryFrequencyMs: frequencyMs } = settings;
  return new ExpiryController({ client, logger, namespace, frequencyMs });
}

function repositoryController(parts: Parts): RepositoryController {
  const { common, settings, openRepositoryStorage } = parts;
  const { frequency, configMap, jobs } = settings.repositories;
  return new RepositoryController({
    ...ownOf(parts),
    registry: common.registry,
    connection: {
      openStorage: openRepositoryStorage,
      directory: common.directory,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      frequency,
      configMap,
    },
    jobs,
  });
}

const locationController = (parts: Parts): LocationController =>
  new LocationController({
    ...ownOf(parts),
    registry: parts.common.registry,
    stores: storesOf(parts, 'backup-storage-location'),
    validationFrequencyMs: parts.settings.validationFrequencyMs,
    defaultLocation: parts.settings.defaultLocation,
  });

const syncController = (parts: Parts): SyncController =>
  new SyncController({
    ...ownOf(parts),
    registry: parts.common.registry,
    backups: parts.common.backups,
    periodMs: parts.settings.syncPeriodMs,
    buckets: locationBuckets(parts.common, storesOf(parts, 'backup-sync').directory),
  });

const scheduleController = (parts: Parts): ScheduleController =>
  new ScheduleController({
    ...ownOf(parts),
    registry: parts.common.registry,
    backups: parts.common.backups,
    skipsImmediately: parts.settings.skipsImmediately,
    ...(parts.backups && { series: seriesOf(parts.backups) }),
  });

function downloadController(parts: Parts): DownloadController {
  const { common, backups, restores } = parts;
  const stores = storesOf(parts, 'download-request');
  return new DownloadController({
    ...ownOf(parts),
    stores,
    buckets: locationBuckets(common, stores.directory),
    unsavedOperations: {
      save: async (owner, signal) => {
        const opened = owner.kind === 'Restore' ? restores : backups;
        await opened?.unsavedOperations.save(owner, signal);
      },
    },
  });
}

function statusRequestController({ common, settings }: Parts): StatusRequestController {
  const { client, logger, namespace, plugins } = common;
  return new StatusRequestController({
    client,
    logger,
    namespace,
    serverVersion: settings.serverVersion,
    plugins: async () => (await plugins?.list()) ?? [],
  });
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
