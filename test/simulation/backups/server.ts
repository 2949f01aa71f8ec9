import { Registry } from 'prom-client';
import { BackupArchive, bucketOf } from '../../../src/archive/index.ts';
import { BACKUP_DEFAULTS, openObjectActions } from '../../../src/backup/index.ts';
import type { BackupAction } from '../../../src/backup/index.ts';
import { ClusterVolumes, POD_VOLUME_ACTION } from '../../../src/backup-volumes/index.ts';
import { type Clock, CodedError } from '../../../src/base/index.ts';
import { OperationMap, pluginAsker } from '../../../src/item-operations/index.ts';
import {
  type Backup,
  Discovery,
  type KubeClient,
  type KubeObject,
} from '../../../src/kube/index.ts';
import {
  choicesOf,
  namespacesOf,
  openActions,
  readsOf,
  removeLostSnapshots,
} from '../../../src/plugin/index.ts';
import type { BackupItemAction } from '../../../src/plugin/contract.ts';
import {
  BackupController,
  BackupMetrics,
  backupOperationStore,
  ClusterRunner,
  FinalizerController,
  OperationsController,
  type ServerController,
  SharedBackups,
} from '../../../src/server/index.ts';
import type { ActionSessions, Buckets } from '../../../src/server/backups/contract.ts';
import { ListedVolumes, VolumeHelper } from '../../../src/volume-policy/index.ts';
import { NAMESPACE } from '../objects.ts';
import { ProcessBucket } from '../servers/bucket.ts';
import { SCRATCH } from '../servers/instant-io.ts';
import { type ProcessWorld, ServerProcess } from '../servers/server-process.ts';

const PVC_ACTION = 'longshore.io/csi-pvc-backupper';
const SNAPSHOT_ACTION = 'longshore.io/csi-volumesnapshot-backupper';

/** The world of servers that make backups. */
export interface ServerWorld extends ProcessWorld {
  /** Called when a run takes an item into a backup, and not when the finalizer does. */
  onTake(item: KubeObject, backup: Backup): void;
}

/** A server for backups: its controllers, its runner, and our actions for volumes. */
export const backupServer = (name: string, world: ServerWorld): ServerProcess =>
  new ServerProcess(name, world, (process, clock) => backupControllers(process, clock, world));

/** `shared`: the watch of Backups in a process that also has a deletion controller. */
export function backupControllers(
  process: ServerProcess,
  clock: Clock,
  world: ServerWorld,
  shared?: SharedBackups,
): readonly ServerController[] {
  const { client, logger, name: host } = process;
  const backups = shared ?? sharedBackups(process);
  const bucket = bucketOf(
    new ProcessBucket(world.bucket, world.time, world.random, process),
    world,
  );
  const buckets: Buckets = {
    open: () => Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
  };
  const store = backupOperationStore(client, NAMESPACE, buckets);
  const operations = new OperationMap({ store, logger, clock });
  const sessions = sessionsOf(client, world);
  let opened: Promise<Discovery> | undefined;
  const discovery = (): Promise<Discovery> => {
    opened ??= Discovery.open(client, { logger });
    opened.catch(() => (opened = undefined));
    return opened;
  };
  const registry = new Registry();
  const common = {
    client,
    logger,
    host,
    buckets,
    sessions,
    map: operations,
    scratch: SCRATCH,
    backups,
  };
  let runner: Promise<ClusterRunner> | undefined;
  const controller = new BackupController({
    host,
    removeSnapshots: ({ metadata: { name, uid } }, options) =>
      removeLostSnapshots({ client, logger }, { namespace: NAMESPACE, name, uid }, options),
    snapshotLocations: () => Promise.resolve([]),
    backups,
    client,
    logger,
    namespace: NAMESPACE,
    buckets,
    sessions,
    operations,
    discovery,
    clock,
    runner: () => {
      runner ??= discovery().then(
        (found) =>
          new ClusterRunner({
            client,
            discovery: found,
            buckets,
            sessions,
            operations,
            logger,
            clock,
            directory: SCRATCH,
            logLevel: 'info',
            logFormat: 'text',
            workers: 3,
            archiveOf: (each) => new BackupArchive(each, { logger }),
            openVolumes: ({ client: patient, backup, log, signal }) => {
              const asked = backup;
              const volumes = new ListedVolumes(readsOf(patient, { signal }), {
                namespaces: namespacesOf(asked),
              });
              return Promise.resolve(
                new ClusterVolumes({
                  client: patient,
                  backup,
                  signal,
                  hasCsi: true,
                  log: log.results,
                  tryLog: log.ofTry,
                  locations: [],
                  helper: new VolumeHelper({
                    policies: undefined,
                    ...choicesOf(asked),
                    backupExcludePvc: false,
                    volumes,
                  }),
                  snapshotters: () => {
                    throw new Error('there is none');
                  },
                  resourceTimeoutMs: 600_000,
                  podVolumeTimeoutMs: 4 * 3_600_000,
                }),
              );
            },
          }),
      );
      runner.catch(() => (runner = undefined));
      return runner;
    },
    defaults: BACKUP_DEFAULTS,
    loadPolicies: () => Promise.resolve(undefined),
    isServed: () => Promise.resolve(true),
    annotations: {},
    isDeletedElsewhere: shared !== undefined,
    runningMax: 1,
    metrics: new BackupMetrics(registry, { backups: () => backups.list() }),
  });
  return [
    controller,
    new OperationsController({ ...common, syncFrequencyMs: 10_000 }),
    new FinalizerController({
      ...common,
      discovery: async (signal) => {
        const found = await discovery();
        await found.refresh({ signal });
        return found;
      },
    }),
  ];
}

export const sharedBackups = ({ client, logger }: ServerProcess): SharedBackups =>
  new SharedBackups({ client, logger, namespace: NAMESPACE });

/** Each session has its own actions, like the plugin processes of a real server. */
function sessionsOf(client: KubeClient, world: ServerWorld): ActionSessions {
  return {
    open: (backup, logger) => {
      const open = openActions({ client, logger });
      const hosted: Record<string, BackupItemAction> = {
        [PVC_ACTION]: open.pvcBackup(),
        [SNAPSHOT_ACTION]: open.snapshotBackup(),
        [POD_VOLUME_ACTION]: open.podVolumeOperation(),
      };
      const actionOf = (name: string, resource: string): BackupAction => ({
        name,
        appliesTo: { includedResources: [resource] },
        execute: (item, about, context) =>
          (hosted[name] as BackupItemAction).execute(item, about, context),
      });
      const every: BackupAction = {
        name: 'simulation/every',
        appliesTo: {},
        execute: (item, about) => {
          world.onTake(item, about);
          return Promise.resolve({});
        },
      };
      const own = openObjectActions(client);
      const manager = {
        backupItemAction: (name: string) => {
          const action = hosted[name];
          if (!action) throw new CodedError('NO_SUCH_PLUGIN', `there is no ${name}`);
          return { action };
        },
      };
      return Promise.resolve({
        loadActions: () =>
          Promise.resolve({
            actions: [
              ...own.actions,
              every,
              actionOf(PVC_ACTION, 'persistentvolumeclaims'),
              actionOf(SNAPSHOT_ACTION, 'volumesnapshots.snapshot.storage.k8s.io'),
            ],
            blockActions: own.blockActions,
          }),
        asker: pluginAsker(manager as never, backup),
        snapshotter: () => {
          throw new Error('there is none');
        },
        [Symbol.asyncDispose]: () => Promise.resolve(),
      });
    },
  };
}
