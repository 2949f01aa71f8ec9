import { existsSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Agent, type AgentOptions } from '../../src/agent/index.ts';
import { isCode, type Logger, Secret, silentLogger } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import { parseBackupStorageLocation, repositoryLocation } from '../../src/config/index.ts';
import { ApiServer, DevCluster, STORAGE_CLASS } from '../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  connectToCluster,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  NAMESPACES,
  type Phase,
  PODS,
  PVCS,
  PVS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  waitFor,
} from '../../src/kube/index.ts';
import {
  createFormat,
  defaultParameters,
  openRepository,
  putMaintenanceParameters,
} from '../../src/repository/index.ts';
import { sharedPackage } from './package.ts';

export const NAMESPACE = 'velero';
export const REPOSITORY_PASSWORD = 'static-passw0rd';
const FINAL = ['Completed', 'Failed', 'Canceled'];

export interface TestClusterOptions {
  readonly nodes?: readonly string[];
  /** Of a real API server; without it one in this process. */
  readonly kubeconfig?: string;
  readonly logger?: Logger;
  readonly snapshotMs?: number;
  /** Whether claims are bound and pods scheduled by us. */
  readonly withControllers?: boolean;
  readonly moverEnvironment?: Readonly<Record<string, string>>;
}

/** A cluster for tests of agents: an API server, a simulated CSI driver, nodes that run pods as processes. */
export class TestCluster implements AsyncDisposable {
  readonly client: KubeClient;
  readonly cluster: DevCluster;
  readonly directory: string;
  readonly kubeconfig: string;
  readonly logger: Logger;
  readonly #abort = new AbortController();
  readonly #work: Promise<unknown>[] = [];
  readonly #agents: TestAgent[] = [];
  readonly #server: ApiServer | undefined;

  private constructor(parts: {
    client: KubeClient;
    cluster: DevCluster;
    directory: string;
    kubeconfig: string;
    logger: Logger;
    server: ApiServer | undefined;
  }) {
    this.client = parts.client;
    this.cluster = parts.cluster;
    this.directory = parts.directory;
    this.kubeconfig = parts.kubeconfig;
    this.logger = parts.logger;
    this.#server = parts.server;
  }

  static async start(options: TestClusterOptions = {}): Promise<TestCluster> {
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-cluster-'));
    const server = options.kubeconfig === undefined ? await ApiServer.start() : undefined;
    const kubeconfig = options.kubeconfig ?? join(directory, 'kubeconfig');
    if (server) await fs.writeFile(kubeconfig, server.kubeconfig);
    const client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
    const logger = options.logger ?? silentLogger;
    const cluster = new DevCluster({
      client,
      logger,
      directory,
      namespace: NAMESPACE,
      nodes: options.nodes ?? ['node-1', 'node-2'],
      command: [join(sharedPackage(), 'bin/longshore')],
      environment: {
        KUBECONFIG: kubeconfig,
        HOME: join(directory, 'home'),
        PATH: process.env.PATH ?? '',
        ...options.moverEnvironment,
      },
      repositoryPassword: REPOSITORY_PASSWORD,
      prepareRepository: (repository) => prepareRepository(client, repository),
      withControllers: options.withControllers ?? server !== undefined,
      ...(options.snapshotMs !== undefined && { snapshotMs: options.snapshotMs }),
    });
    await cluster.seed();
    const test = new TestCluster({ client, cluster, directory, kubeconfig, logger, server });
    test.#work.push(cluster.run(test.#abort.signal));
    return test;
  }

  startAgent(node: string, overrides: Partial<AgentOptions> = {}): TestAgent {
    const client = connectToCluster({ kubeconfig: this.kubeconfig, userAgent: `agent-${node}/1` });
    const agent = new Agent({
      client,
      logger: this.logger,
      node,
      namespace: NAMESPACE,
      dataMovers: new Set(['', 'velero']),
      agentSelector: 'role=node-agent',
      concurrency: 2,
      prepareTimeoutMs: 60_000,
      restartsMax: 3,
      stallTimeoutMs: 900_000,
      takeoverMs: 300_000,
      prepareQueueLength: 0,
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
    const started: TestAgent = {
      agent,
      node,
      stop: async () => {
        abort.abort();
        await work;
        client.close();
      },
    };
    const work = agent.run(abort.signal);
    this.#agents.push(started);
    return started;
  }

  async makeNamespace(name: string): Promise<void> {
    try {
      await this.client.create(NAMESPACES, { metadata: { name } });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
  }

  /** A bound PVC; returns where its bytes lie. */
  async makeVolume(
    namespace: string,
    name: string,
    options: { storageClass?: string; block?: boolean; storage?: string } = {},
  ): Promise<string> {
    await this.client.create(PVCS, {
      metadata: { name, namespace },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: options.storageClass ?? STORAGE_CLASS,
        ...(options.block === true && { volumeMode: 'Block' }),
        resources: { requests: { storage: options.storage ?? '1Gi' } },
      },
    });
    return this.volumeOf(namespace, name);
  }

  /** Where the bytes of a bound PVC lie, once it is bound. */
  async volumeOf(namespace: string, name: string): Promise<string> {
    const volume = await waitFor(
      this.client,
      PVCS,
      { namespace, name },
      (claim) => (claim?.status?.phase === 'Bound' ? claim.spec.volumeName : undefined),
      { timeoutMs: 30_000 },
    );
    const { spec } = await this.client.get(PVS, { name: volume });
    return this.cluster.csi.volumePath(spec.csi?.volumeHandle ?? '');
  }

  /** A VolumeSnapshot as Velero's plugin makes it; resolves with its name. */
  async makeSnapshot(namespace: string, pvc: string): Promise<string> {
    const { metadata } = await this.client.create(VOLUME_SNAPSHOTS, {
      metadata: { generateName: `velero-${pvc}-`, namespace },
      spec: { source: { persistentVolumeClaimName: pvc } },
    });
    return metadata.name;
  }

  createUpload(
    name: string,
    spec: { namespace: string; pvc: string; snapshot: string } & Record<string, unknown>,
  ): Promise<DataUpload> {
    const { namespace, pvc, snapshot, ...more } = spec;
    return this.client.create(DATA_UPLOADS, {
      metadata: {
        name,
        namespace: NAMESPACE,
        labels: { 'velero.io/async-operation-id': `du-${name}` },
      },
      spec: {
        snapshotType: 'CSI',
        csiSnapshot: { volumeSnapshot: snapshot, storageClass: STORAGE_CLASS, snapshotClass: '' },
        sourcePVC: pvc,
        sourceNamespace: namespace,
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
        ...more,
      },
    });
  }

  /** A target PVC as Velero's plugin leaves it, waiting for its volume. */
  async makeTarget(
    namespace: string,
    name: string,
    options: { storageClass?: string; block?: boolean; storage?: string } = {},
  ): Promise<void> {
    await this.client.create(PVCS, {
      metadata: { name, namespace },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: options.storageClass ?? STORAGE_CLASS,
        ...(options.block === true && { volumeMode: 'Block' }),
        resources: { requests: { storage: options.storage ?? '1Gi' } },
        selector: { matchLabels: { 'velero.io/dynamic-pv-restore': `${namespace}.${name}.x1` } },
      },
    });
  }

  createDownload(
    name: string,
    spec: { namespace: string; pvc: string; snapshotID: string; sourceNamespace: string } & Record<
      string,
      unknown
    >,
  ): Promise<DataDownload> {
    const { namespace, pvc, snapshotID, sourceNamespace, ...more } = spec;
    return this.client.create(DATA_DOWNLOADS, {
      metadata: { name, namespace: NAMESPACE },
      spec: {
        targetVolume: { namespace, pvc, pv: '' },
        snapshotID,
        sourceNamespace,
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
        ...more,
      },
    });
  }

  waitUpload(name: string, phase?: Phase, timeoutMs = 90_000): Promise<DataUpload> {
    return waitFor(
      this.client,
      DATA_UPLOADS,
      { namespace: NAMESPACE, name },
      (upload) => (isThere(upload?.status?.phase, phase) ? upload : undefined),
      { timeoutMs },
    );
  }

  waitDownload(name: string, phase?: Phase, timeoutMs = 90_000): Promise<DataDownload> {
    return waitFor(
      this.client,
      DATA_DOWNLOADS,
      { namespace: NAMESPACE, name },
      (download) => (isThere(download?.status?.phase, phase) ? download : undefined),
      { timeoutMs },
    );
  }

  /** Names of what is left of the agents' own intermediate objects. */
  async leftovers(): Promise<string[]> {
    const { client } = this;
    const [pods, claims, snapshots, contents] = await Promise.all([
      client.list(PODS, { namespace: NAMESPACE, labelSelector: 'velero.io/exposer-pod-group' }),
      client.list(PVCS, { namespace: NAMESPACE }),
      client.list(VOLUME_SNAPSHOTS, {}),
      client.list(VOLUME_SNAPSHOT_CONTENTS, {}),
    ]);
    return [...pods, ...claims, ...snapshots, ...contents].map(
      ({ kind, metadata }) => `${kind ?? ''} ${metadata.name}`,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) await agent.stop();
    this.#abort.abort();
    await Promise.all(this.#work);
    this.client.close();
    await this.#server?.[Symbol.asyncDispose]();
    if (existsSync(this.directory)) await fs.rm(this.directory, { recursive: true, force: true });
  }
}

export interface TestAgent {
  readonly agent: Agent;
  readonly node: string;
  /** As SIGTERM would. */
  stop(): Promise<void>;
}

/** The phase wanted, or any final one where none is named. */
const isThere = (phase: string | undefined, wanted: Phase | undefined): boolean =>
  wanted === undefined ? FINAL.includes(phase ?? '') : phase === wanted;

/** As Velero's server creates a repository, but for its marker blob. */
async function prepareRepository(client: KubeClient, repository: BackupRepository): Promise<void> {
  const { backupStorageLocation, volumeNamespace } = repository.spec;
  const object = await client.get(BACKUP_STORAGE_LOCATIONS, {
    namespace: NAMESPACE,
    name: backupStorageLocation,
  });
  const location = repositoryLocation(parseBackupStorageLocation(object), volumeNamespace);
  await using storage = await openStorage(location, { create: true });
  const password = new Secret(REPOSITORY_PASSWORD);
  try {
    await createFormat(storage, password, {
      hash: 'BLAKE2B-256-128',
      encryption: 'AES256-GCM-HMAC-SHA256',
      splitter: 'DYNAMIC-4M-BUZHASH',
      version: 3,
    });
  } catch (error) {
    if (!isCode(error, 'REPOSITORY_EXISTS')) throw error;
    return;
  }
  const user = { username: 'default', hostname: 'default' };
  await using opened = await openRepository({ storage, password, client: user });
  await putMaintenanceParameters(opened, defaultParameters(user));
  await opened.flush();
}
