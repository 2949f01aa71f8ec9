import { randomUUID } from 'node:crypto';
import * as fs from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { Agent, type AgentOptions } from '../../agent/index.ts';
import {
  type Clock,
  CodedError,
  type Logger,
  makeDirectories,
  refusalOf,
  Secret,
  silentLogger,
} from '../../base/index.ts';
import { openStorage } from '../../blob/index.ts';
import { parseBackupStorageLocation, repositoryLocation } from '../../config/index.ts';
import { ApiServer, DevCluster } from '../../dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  BUILT_IN_MOVERS,
  connectToCluster,
  type KubeClient,
  PVCS,
  PVS,
  waitFor,
} from '../../kube/index.ts';
import { prepareRepository } from '../../server/index.ts';
import { VERSION } from '../version.ts';

export const DEV_NAMESPACE = 'velero';
/** Velero's own password for every repository. */
export const DEV_PASSWORD = 'static-passw0rd';
/** The file in which `dev up` keeps its objects. */
const STATE_FILE = 'state.jsonl';
const PREPARE_MS = 300_000;
const BOUND_MS = 30_000;

export interface DevEnvironmentOptions {
  readonly directory: string;
  readonly nodes: readonly string[];
  /** Replaces `/velero` in hosting pods. */
  readonly command: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly logger: Logger;
  /** A real API server with its own controllers. Without it, one runs in this process. */
  readonly kubeconfig?: string | undefined;
  readonly port?: number | undefined;
  readonly snapshotMs?: number | undefined;
  /** False if another program prepares repositories, such as Velero's server. */
  readonly keepsRepositories?: boolean;
  /** Keeps objects in the directory for the next run. */
  readonly isKept?: boolean;
}

/** A cluster for tests and demos, with simulated nodes and storage, and agents on demand. */
export class DevEnvironment implements AsyncDisposable {
  readonly client: KubeClient;
  readonly cluster: DevCluster;
  readonly kubeconfig: string;
  readonly #options: DevEnvironmentOptions;
  readonly #server: ApiServer | undefined;
  readonly #abort = new AbortController();
  readonly #work: Promise<unknown>[] = [];
  readonly #agents: RunningAgent[] = [];
  #turn: AsyncDisposable | undefined;

  private constructor(
    options: DevEnvironmentOptions,
    kubeconfig: string,
    server: ApiServer | undefined,
  ) {
    this.#options = options;
    this.#server = server;
    this.kubeconfig = kubeconfig;
    const { directory, nodes, command, logger, environment, snapshotMs } = options;
    const { keepsRepositories = true } = options;
    this.client = connectToCluster({ kubeconfig, userAgent: `longshore-dev/${VERSION}` });
    this.cluster = new DevCluster({
      client: this.client,
      logger,
      directory,
      namespace: DEV_NAMESPACE,
      nodes,
      command,
      environment: { KUBECONFIG: kubeconfig, ...environment },
      repositoryPassword: DEV_PASSWORD,
      prepareRepository: keepsRepositories
        ? (repository) => prepare(this.client, repository)
        : undefined,
      withControllers: server !== undefined,
      ...(snapshotMs !== undefined && { snapshotMs }),
    });
  }

  static async start(options: DevEnvironmentOptions): Promise<DevEnvironment> {
    await makeDirectories(options.directory, 0o700).catch((cause: unknown) => {
      const text = `cannot use the directory ${options.directory}: ${refusalOf(cause)}`;
      throw new CodedError('UNUSABLE_DIRECTORY', text, { cause });
    });
    await assertPrivate(options.directory);
    // Two clusters on one directory would undo each other's changes.
    const turn = options.isKept ? await takeDirectory(options.directory) : undefined;
    try {
      const server =
        options.kubeconfig === undefined
          ? await ApiServer.start({
              ...(options.port !== undefined && { port: options.port }),
              podLog: (_namespace, name) => environment.cluster.podLog(name),
              logger: options.logger,
              ...(options.isKept && { statePath: join(options.directory, STATE_FILE) }),
            })
          : undefined;
      const kubeconfig = options.kubeconfig ?? join(options.directory, 'kubeconfig');
      if (server) await writePrivate(kubeconfig, server.kubeconfig);
      const environment: DevEnvironment = new DevEnvironment(options, kubeconfig, server);
      environment.#turn = turn;
      if (options.isKept) await environment.cluster.resume();
      await environment.cluster.seed();
      environment.#work.push(environment.cluster.run(environment.#abort.signal));
      return environment;
    } catch (error) {
      await turn?.[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** `clock`: the clock of the node, which may be wrong. */
  startAgent(node: string, overrides: Partial<AgentOptions> = {}, clock?: Clock): RunningAgent {
    const userAgent = `longshore-node-agent/${VERSION} (${node})`;
    const client = connectToCluster({ kubeconfig: this.kubeconfig, userAgent, clock });
    const agent = new Agent({
      client,
      logger: this.#options.logger,
      node,
      namespace: DEV_NAMESPACE,
      dataMovers: new Set(BUILT_IN_MOVERS),
      agentSelector: 'role=node-agent',
      concurrency: 2,
      prepareTimeoutMs: PREPARE_MS,
      restartsMax: 3,
      stallTimeoutMs: 900_000,
      takeoverMs: 300_000,
      fenceMs: 240_000,
      prepareQueueLength: 0,
      servesPodVolumes: true,
      ...overrides,
      exposer: {
        daemonSet: 'node-agent',
        moverCommand: ['/velero'],
        moverEnvironment: { LONGSHORE_PROGRESS_INTERVAL: '200ms' },
        config: { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} },
        ...overrides.exposer,
      },
    });
    const abort = new AbortController();
    const work = agent.run(abort.signal);
    const started: RunningAgent = {
      agent,
      node,
      stop: async () => {
        abort.abort();
        await work;
        client.close();
      },
    };
    this.#agents.push(started);
    return started;
  }

  /** The path of a PVC's bytes. Waits until it is bound. */
  async volumeOf(namespace: string, name: string): Promise<string> {
    const volume = await waitFor(
      this.client,
      PVCS,
      { namespace, name },
      (claim) => (claim?.status?.phase === 'Bound' ? claim.spec.volumeName : undefined),
      { timeoutMs: BOUND_MS },
    );
    const { spec } = await this.client.get(PVS, { name: volume });
    return this.cluster.csi.volumePath(spec.csi?.volumeHandle ?? '');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) await agent.stop();
    this.#abort.abort();
    await Promise.all(this.#work);
    this.client.close();
    await this.#server?.[Symbol.asyncDispose]();
    await this.#turn?.[Symbol.asyncDispose]();
  }
}

/**
 * Contains the kubeconfig, the home and the compiled code of movers. Any user who can write here
 * could run code as this user. Throws `UNUSABLE_DIRECTORY`.
 */
async function assertPrivate(directory: string): Promise<void> {
  const { uid, mode } = await fs.stat(directory);
  const reason =
    uid !== process.getuid?.()
      ? 'it belongs to another user'
      : mode & 0o022
        ? 'other users can write to it; run chmod go-w on it'
        : undefined;
  if (reason === undefined) return;
  const text = `cannot use the directory ${directory}: ${reason}`;
  throw new CodedError('UNUSABLE_DIRECTORY', text);
}

/** Throws `DIRECTORY_IN_USE`. The lock ends with this process, even after a kill. */
async function takeDirectory(directory: string): Promise<AsyncDisposable> {
  const { dev, ino } = await fs.stat(directory);
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => {
      if (cause.code !== 'EADDRINUSE') reject(cause);
      const text = `another dev up is using the directory ${directory}; stop that one first, or choose another --directory`;
      reject(new CodedError('DIRECTORY_IN_USE', text, { cause }));
    });
    // An abstract socket name, which leaves no file behind.
    server.listen(`\0longshore-dev-${dev}-${ino}`, resolve);
  });
  server.unref();
  return {
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
      }),
  };
}

/** Writes a new file, because an existing one may be readable by others, or a link. */
async function writePrivate(path: string, text: string): Promise<void> {
  const partial = `${path}.${randomUUID()}`;
  await fs.writeFile(partial, text, { mode: 0o600, flag: 'wx' });
  await fs.rename(partial, path);
}

export interface RunningAgent {
  readonly agent: Agent;
  readonly node: string;
  /** Like SIGTERM: its running work stays unchanged. */
  stop(): Promise<void>;
}

/** Creates the repository of a BackupRepository like Velero, unless it exists. */
async function prepare(client: KubeClient, { spec, metadata }: BackupRepository): Promise<void> {
  const { namespace } = metadata;
  const object = await client.get(BACKUP_STORAGE_LOCATIONS, {
    namespace,
    name: spec.backupStorageLocation,
  });
  const location = repositoryLocation(parseBackupStorageLocation(object), spec.volumeNamespace);
  await using storage = await openStorage(location, { create: true, isRepository: true });
  await prepareRepository({
    storage,
    password: new Secret(DEV_PASSWORD),
    clock: client.clock,
    logger: silentLogger,
    locationName: `${namespace ?? ''}/${spec.backupStorageLocation}`,
    isReadOnly: false,
  });
}
