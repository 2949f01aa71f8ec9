import { Registry } from 'prom-client';
import { BackupArchive, bucketOf } from '../../../src/archive/index.ts';
import { type Clock, CodedError } from '../../../src/base/index.ts';
import { inPlaceHindrance } from '../../../src/exposer/index.ts';
import { OperationMap, pluginAsker } from '../../../src/item-operations/index.ts';
import { BACKUP_STORAGE_LOCATIONS, Discovery, type KubeClient } from '../../../src/kube/index.ts';
import { openActions } from '../../../src/plugin/index.ts';
import type { RestoreItemAction } from '../../../src/plugin/contract.ts';
import type { RestoreAction } from '../../../src/restore/index.ts';
import { POD_VOLUME_RESTORE_ACTION } from '../../../src/restore-volumes/index.ts';
import {
  ClusterRestoreRunner,
  FileWriters,
  RestoreController,
  RestoreFinalizerController,
  RestoreLocations,
  RestoreMetrics,
  restoreOperationStore,
  RestoreOperationsController,
  type ServerController,
  SharedRestores,
} from '../../../src/server/index.ts';
import type { Buckets } from '../../../src/server/backups/contract.ts';
import type { RestoreSessions } from '../../../src/server/restores/run/contract.ts';
import { NAMESPACE } from '../objects.ts';
import { ProcessBucket } from '../servers/bucket.ts';
import { SCRATCH } from '../servers/instant-io.ts';
import { type ProcessWorld, ServerProcess } from '../servers/server-process.ts';

const CLAIM_ACTION = 'longshore.io/csi-pvc-restorer';
const UPLOAD_ACTION = 'longshore.io/dataupload';
const RESOURCE_TIMEOUT_MS = 600_000;
const OPERATION_NS = 4n * 3_600_000_000_000n;

/** A server for restores: its controllers, its runner, and our actions for volumes. */
export const restoreServer = (name: string, world: ProcessWorld): ServerProcess =>
  new ServerProcess(name, world, (process, clock) => restoreControllers(process, clock, world));

export function restoreControllers(
  process: ServerProcess,
  own: Clock,
  world: ProcessWorld,
): readonly ServerController[] {
  const { client, logger, name: host } = process;
  const shared = new ProcessBucket(world.bucket, world.time, world.random, process);
  const bucket = bucketOf(shared, world);
  const buckets: Buckets = {
    open: async (location, signal) => {
      const ref = { namespace: NAMESPACE, name: location };
      const found = await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal });
      if (!found) throw new CodedError('NO_LOCATION', `no backup storage location ${location}`);
      return { bucket, [Symbol.asyncDispose]: () => Promise.resolve() };
    },
  };
  const restores = new SharedRestores({ client, logger, namespace: NAMESPACE });
  const locations = new RestoreLocations(client, NAMESPACE);
  const writers = new FileWriters();
  const places = { buckets, locations, writers };
  const store = restoreOperationStore({ ...places, client, namespace: NAMESPACE, logger });
  const operations = new OperationMap({ store, logger, clock: own });
  const sessions = sessionsOf(client);
  let runner: Promise<ClusterRestoreRunner> | undefined;
  const theRunner = (): Promise<ClusterRestoreRunner> => {
    runner ??= Discovery.open(client, { logger }).then(
      (discovery) =>
        new ClusterRestoreRunner({
          client,
          discovery,
          buckets,
          sessions,
          operations,
          logger,
          clock: own,
          archiveOf: (each) => new BackupArchive(each, { logger }),
          snapshotLocations: () => Promise.resolve([]),
          directory: SCRATCH,
          helper: { image: 'longshore', tag: 'v1' },
          terminatingMs: RESOURCE_TIMEOUT_MS,
          resourceTimeoutMs: RESOURCE_TIMEOUT_MS,
          logLevel: 'info',
          logFormat: 'text',
        }),
    );
    runner.catch(() => (runner = undefined));
    return runner;
  };
  const common = { ...places, client, logger, restores };
  const after = { ...common, host, map: operations, scratch: SCRATCH };
  const resourceTimeoutNs = BigInt(RESOURCE_TIMEOUT_MS) * 1_000_000n;
  return [
    new RestoreController({
      ...common,
      namespace: NAMESPACE,
      host,
      operations,
      runner: theRunner,
      validation: { itemOperationTimeout: '4h0m0s' },
      metrics: new RestoreMetrics(new Registry(), () => []),
      // Like `longshore server`: its times are compared with those of the API server.
      clock: {
        nowNs: () => client.clock.nowNs(),
        monotonicNs: () => own.monotonicNs?.() ?? 0n,
      },
    }),
    new RestoreOperationsController({
      ...after,
      sessions,
      resourceTimeoutNs,
      syncFrequencyMs: 10_000,
      timeoutNs: OPERATION_NS,
    }),
    new RestoreFinalizerController({
      ...after,
      namespace: NAMESPACE,
      resourceTimeoutNs,
      hookTimeoutNs: OPERATION_NS,
    }),
  ];
}

/** Each session has its own actions, like the plugin processes of a real server. */
function sessionsOf(client: KubeClient): RestoreSessions {
  return {
    open: (restore, logger) => {
      const open = openActions({
        client,
        logger,
        inPlaceHindrance: (download, signal) => inPlaceHindrance(client, download, signal),
      });
      const hosted: Record<string, RestoreItemAction> = {
        [CLAIM_ACTION]: open.pvcRestore(),
        [UPLOAD_ACTION]: open.uploadResults(),
        [POD_VOLUME_RESTORE_ACTION]: open.podVolumeRestoreOperation(),
      };
      const actionOf = (name: string, resource: string): RestoreAction => ({
        name,
        appliesTo: { includedResources: [resource] },
        execute: async ({ restore: about, ...input }, context) => {
          const given = { ...input, restore: about };
          const action = hosted[name] as RestoreItemAction;
          const { skipRestore, ...output } = await action.execute(given, context);
          return { ...output, ...(skipRestore === true && { isSkipped: true }) };
        },
      });
      const manager = {
        restoreItemAction: (name: string) => {
          const action = hosted[name];
          if (!action) throw new CodedError('NO_SUCH_PLUGIN', `there is no ${name}`);
          return { action };
        },
      };
      return Promise.resolve({
        loadActions: () =>
          Promise.resolve([
            actionOf(CLAIM_ACTION, 'persistentvolumeclaims'),
            actionOf(UPLOAD_ACTION, 'datauploads.velero.io'),
          ]),
        asker: pluginAsker(manager as never, restore),
        snapshotter: () => {
          throw new Error('there is none');
        },
        [Symbol.asyncDispose]: () => Promise.resolve(),
      });
    },
  };
}
