import { Registry } from 'prom-client';
import { BackupArchive, bucketOf } from '../../../src/archive/index.ts';
import { BACKUP_DEFAULTS, openObjectActions } from '../../../src/backup/index.ts';
import type { Backup, BackupAction } from '../../../src/backup/index.ts';
import { ClusterVolumes, POD_VOLUME_ACTION } from '../../../src/backup-volumes/index.ts';
import { type Clock, CodedError, isCode, type Logger } from '../../../src/base/index.ts';
import { discovery as served } from '../../../src/dev/discovery.ts';
import type { Store } from '../../../src/dev/store.ts';
import { OperationMap, pluginAsker } from '../../../src/item-operations/index.ts';
import { Discovery, type KubeObject, type Resource } from '../../../src/kube/index.ts';
import type { ListOptions } from '../../../src/kube/client/client.ts';
import {
  type Backup as PluginBackup,
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
  Server,
  SharedBackups,
} from '../../../src/server/index.ts';
import type { ActionSessions, Buckets } from '../../../src/server/backups/contract.ts';
import { ListedVolumes, VolumeHelper } from '../../../src/volume-policy/index.ts';
import { NAMESPACE } from '../objects.ts';
import { SimulatedClient, type Weather } from '../simulated-client.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import { type Life, ProcessBucket, type SharedBucket } from './bucket.ts';
import { SCRATCH } from './instant-io.ts';

export const START_MS = Date.UTC(2026, 0, 1);
const CUT: Pick<Weather, 'refused'> = { refused: 1 };
const PVC_ACTION = 'longshore.io/csi-pvc-backupper';
const SNAPSHOT_ACTION = 'longshore.io/csi-volumesnapshot-backupper';

/** What servers live in, and who looks at what they do. */
export interface ServerWorld {
  /** Whether the location is one in which no key is put twice. */
  readonly isWriteOnce: boolean;
  readonly store: Store;
  readonly bucket: SharedBucket;
  readonly time: VirtualTime;
  readonly random: Random;
  /** Of the API server. */
  readonly clock: Clock;
  readonly weather: Weather;
  /** An item is taken into a backup by a run, not by the finalizer. */
  onTake(item: KubeObject, backup: Backup): void;
  /** A command is to run in a pod; returns what happens when it does. */
  onExec(pod: string, command: string): () => void;
  /** Before each write. */
  onWrite(server: OneServer, what: string): void;
  /** It asks for something, or something that it asked for has taken effect; true where it dies of it. */
  onTurn(server: OneServer, what: string): boolean;
  onEnd(server: OneServer, error: unknown): void;
  say(line: string): void;
}

/** The client of a server: also for what only servers ask. */
class ServerClient extends SimulatedClient {
  onAsk: (what: string) => void = () => undefined;
  onExec: (pod: string, command: string) => () => void = () => () => undefined;

  protected override async call<R>(
    what: string,
    effect: () => R,
    signal: AbortSignal | undefined,
  ): Promise<R> {
    signal?.throwIfAborted();
    this.onAsk(what);
    return super.call(
      what,
      () => {
        const result = effect();
        this.onAsk(`${what}: done`);
        return result;
      },
      signal,
    );
  }

  async collect<T extends KubeObject, K>(
    resource: Resource<T>,
    options: ListOptions,
    take: (item: T) => readonly K[],
  ): Promise<K[]> {
    return (await this.list(resource, options)).flatMap((item) => [...take(item)]);
  }

  override raw(request?: {
    readonly path: string;
    readonly signal?: AbortSignal;
  }): Promise<unknown> {
    const { path = '', signal } = request ?? {};
    return this.call(`ask for ${path}`, () => answerTo(path), signal);
  }

  exec(request: {
    readonly namespace: string;
    readonly pod: string;
    readonly command: readonly string[];
    readonly signal?: AbortSignal;
  }): Promise<{ stdout: string; stderr: string }> {
    const { namespace, pod, command, signal } = request;
    const run = this.onExec(`${namespace}/${pod}`, command.join(' '));
    const effect = (): { stdout: string; stderr: string } => {
      run();
      return { stdout: '', stderr: '' };
    };
    return this.call(`exec ${command.join(' ')} in ${namespace}/${pod}`, effect, signal);
  }
}

/** With the definitions of custom resources, which each real server has. */
function answerTo(path: string): unknown {
  const answer = served(path) as { groups?: object[] } | undefined;
  if (path === '/apis') {
    const versions = [{ groupVersion: 'apiextensions.k8s.io/v1', version: 'v1' }];
    const group = { name: 'apiextensions.k8s.io', versions, preferredVersion: versions[0] };
    return { ...answer, groups: [...(answer?.groups ?? []), group] };
  }
  if (path !== '/apis/apiextensions.k8s.io/v1') return answer;
  const name = 'customresourcedefinitions';
  const verbs = ['create', 'delete', 'get', 'list'];
  const kind = 'CustomResourceDefinition';
  return {
    ...{ kind: 'APIResourceList', groupVersion: 'apiextensions.k8s.io/v1' },
    resources: [{ name, singularName: '', namespaced: false, kind, verbs }],
  };
}

/** One process of `longshore server`, as far as backups go: its controllers, its runner, and our actions for volumes. */
export class OneServer implements Life {
  readonly name: string;
  readonly server: Server;
  isDead = false;
  wallOffsetMs = 0;
  readonly #world: ServerWorld;
  readonly #client: ServerClient;
  readonly #abort = new AbortController();
  #cutUntilMs = 0;
  #frozenUntilMs = 0;

  constructor(name: string, world: ServerWorld) {
    this.name = name;
    this.#world = world;
    const { store, time, random } = world;
    const own: Clock = {
      nowNs: () => BigInt(Math.round((START_MS + time.nowMs + this.wallOffsetMs) * 1e6)),
      monotonicNs: () => BigInt(Math.round(time.nowMs * 1e6)),
    };
    const here = (): Weather => ({
      ...world.weather,
      ...(time.nowMs < this.#cutUntilMs && CUT),
      frozenMs: this.frozenMs,
    });
    this.#client = new ServerClient(store, time, world.clock, random, here);
    this.#client.onAsk = (what) => {
      if (/^(create|update|patch|delete|exec)/.test(what) && !what.endsWith(': done')) {
        if (!/ (leases|events)$/.test(what)) world.onWrite(this, what);
      }
      this.turn(what);
    };
    this.#client.onExec = (pod, command) => world.onExec(pod, command);
    this.server = new Server({
      ...{ client: this.#client.asClient, namespace: NAMESPACE, host: name },
      ...{ logger: this.#logger(), clock: own, registry: new Registry() },
      controllers: this.#controllers(own),
    });
    this.server.run(this.#abort.signal).then(
      () => undefined,
      (error: unknown) => {
        if (!this.isDead) world.onEnd(this, error);
      },
    );
  }

  get isLeading(): boolean {
    return !this.isDead && this.server.election.isLeading;
  }

  get frozenMs(): number {
    return Math.max(0, this.#frozenUntilMs - this.#world.time.nowMs);
  }

  get latencyMs(): number {
    return this.#world.weather.latencyMs;
  }

  get trouble(): number {
    return this.#world.weather.lost;
  }

  turn(what: string): void {
    if (!this.isDead && this.#world.onTurn(this, what)) this.kill();
  }

  cut(ms: number): void {
    this.#cutUntilMs = this.#world.time.nowMs + ms;
  }

  freeze(ms: number): void {
    this.#frozenUntilMs = this.#world.time.nowMs + ms;
  }

  heal(): void {
    this.#cutUntilMs = 0;
    this.#frozenUntilMs = 0;
  }

  /** Nothing of it is heard any more. */
  kill(): void {
    this.isDead = true;
    this.#client.kill();
    this.#abort.abort(new Error('killed'));
  }

  #logger(): Logger {
    const at =
      (level: string) =>
      (fields: object, text: string): void => {
        if (!this.isDead) {
          this.#world.say(`${this.name} ${level} ${text} ${JSON.stringify(fields)}`);
        }
      };
    return { debug: () => undefined, info: at('info'), warn: at('warn'), error: at('error') };
  }

  #controllers(
    clock: Clock,
  ): readonly (BackupController | OperationsController | FinalizerController)[] {
    const client = this.#client.asClient;
    const logger = this.#logger();
    const world = this.#world;
    const bucket = bucketOf(new ProcessBucket(world.bucket, world.time, world.random, this), world);
    const buckets: Buckets = {
      open: () => Promise.resolve({ bucket, [Symbol.asyncDispose]: () => Promise.resolve() }),
    };
    const store = backupOperationStore(client, NAMESPACE, buckets);
    const operations = new OperationMap({ store, logger, clock });
    const sessions = this.#sessions();
    let opened: Promise<Discovery> | undefined;
    const discovery = (): Promise<Discovery> => {
      opened ??= Discovery.open(client, { logger });
      opened.catch(() => (opened = undefined));
      return opened;
    };
    const registry = new Registry();
    const shared = {
      ...{ client, logger, host: this.name, buckets, sessions, map: operations, scratch: SCRATCH },
      backups: new SharedBackups({ client, logger, namespace: NAMESPACE }),
    };
    let runner: Promise<ClusterRunner> | undefined;
    const backups = new BackupController({
      host: this.name,
      removeSnapshots: ({ metadata: { name, uid } }, options) =>
        removeLostSnapshots({ client, logger }, { namespace: NAMESPACE, name, uid }, options),
      ...{ snapshotLocations: () => Promise.resolve([]), backups: shared.backups },
      ...{ client, logger, namespace: NAMESPACE, buckets, sessions, operations, discovery, clock },
      runner: () => {
        runner ??= discovery().then(
          (found) =>
            new ClusterRunner({
              ...{ client, discovery: found, buckets, sessions, operations, logger, clock },
              ...{ directory: SCRATCH, logLevel: 'info', logFormat: 'text', workers: 3 },
              archiveOf: (each) => new BackupArchive(each, { logger }),
              openVolumes: ({ client: patient, backup, log, signal }) => {
                const asked = backup as unknown as PluginBackup;
                const volumes = new ListedVolumes(readsOf(patient, { signal }), {
                  namespaces: namespacesOf(asked),
                });
                return Promise.resolve(
                  new ClusterVolumes({
                    ...{ client: patient, backup, signal, hasCsi: true, log: log.results },
                    locations: [],
                    helper: new VolumeHelper({
                      ...{ policies: undefined, ...choicesOf(asked), backupExcludePvc: false },
                      volumes,
                    }),
                    snapshotters: () => {
                      throw new Error('there is none');
                    },
                    ...{ resourceTimeoutMs: 600_000, podVolumeTimeoutMs: 4 * 3_600_000 },
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
      ...{
        annotations: {},
        runningMax: 1,
        metrics: new BackupMetrics(registry, { backups: () => shared.backups.list() }),
      },
    });
    return [
      backups,
      new OperationsController({ ...shared, syncFrequencyMs: 10_000 }),
      new FinalizerController({
        ...shared,
        discovery: async (signal) => {
          const found = await discovery();
          await found.refresh({ signal });
          return found;
        },
      }),
    ];
  }

  /** Each session has actions of its own, as it would have processes of plugins. */
  #sessions(): ActionSessions {
    const client = this.#client.asClient;
    const world = this.#world;
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
            (hosted[name] as BackupItemAction).execute(
              item,
              about as unknown as PluginBackup,
              context,
            ),
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
          asker: pluginAsker(manager as never, backup as unknown as PluginBackup),
          snapshotter: () => {
            throw new Error('there is none');
          },
          [Symbol.asyncDispose]: () => Promise.resolve(),
        });
      },
    };
  }
}

/** Its process ends, and its kubelet starts another one. */
export const isEndOfProcess = (error: unknown): boolean => isCode(error, 'LEADERSHIP_STUCK');
