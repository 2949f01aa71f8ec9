import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { AgentOptions } from '../../src/agent/index.ts';
import { type Clock, isCode, type Logger, silentLogger } from '../../src/base/index.ts';
import {
  DEV_NAMESPACE,
  DevEnvironment,
  type RunningAgent,
} from '../../src/cli/demo/dev-environment.ts';
import { type DevCluster, STORAGE_CLASS } from '../../src/dev/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  NAMESPACES,
  type MovementPhase,
  PODS,
  PVCS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  waitFor,
} from '../../src/kube/index.ts';
import { sharedPackage } from './package.ts';

export const NAMESPACE = DEV_NAMESPACE;
const FINAL = ['Completed', 'Failed', 'Canceled'];

export interface TestClusterOptions {
  readonly nodes?: readonly string[];
  /** Kubeconfig of a real API server. Default: an API server in this process. */
  readonly kubeconfig?: string;
  readonly logger?: Logger;
  readonly snapshotMs?: number;
  readonly moverEnvironment?: Readonly<Record<string, string>>;
  /** Program that replaces `longshore` in movers. */
  readonly moverProgram?: string;
  /** False if a server makes repositories ready. */
  readonly keepsRepositories?: boolean;
}

/** A cluster for agents: API server, simulated CSI driver, and nodes with pods as processes. */
export class TestCluster implements AsyncDisposable {
  readonly client: KubeClient;
  readonly cluster: DevCluster;
  readonly kubeconfig: string;
  readonly directory: string;
  readonly #environment: DevEnvironment;

  private constructor(environment: DevEnvironment, directory: string) {
    this.#environment = environment;
    this.directory = directory;
    this.client = environment.client;
    this.cluster = environment.cluster;
    this.kubeconfig = environment.kubeconfig;
  }

  static async start(options: TestClusterOptions = {}): Promise<TestCluster> {
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-cluster-'));
    const environment = await DevEnvironment.start({
      directory,
      logger: options.logger ?? silentLogger,
      nodes: options.nodes ?? ['node-1', 'node-2'],
      command: [options.moverProgram ?? join(sharedPackage(), 'bin/longshore')],
      environment: {
        HOME: join(directory, 'home'),
        PATH: process.env.PATH ?? '',
        ...options.moverEnvironment,
      },
      kubeconfig: options.kubeconfig,
      snapshotMs: options.snapshotMs,
      keepsRepositories: options.keepsRepositories ?? true,
    });
    return new TestCluster(environment, directory);
  }

  startAgent(node: string, overrides: Partial<AgentOptions> = {}, clock?: Clock): RunningAgent {
    return this.#environment.startAgent(node, { prepareTimeoutMs: 60_000, ...overrides }, clock);
  }

  async makeNamespace(name: string): Promise<void> {
    try {
      await this.client.create(NAMESPACES, { metadata: { name } });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
  }

  /** Makes a bound PVC. Returns the path of its data. */
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

  /** The path of a PVC's data, once it is bound. */
  volumeOf(namespace: string, name: string): Promise<string> {
    return this.#environment.volumeOf(namespace, name);
  }

  /** Makes a VolumeSnapshot like Velero's plugin. Resolves with its name. */
  async makeSnapshot(namespace: string, pvc: string): Promise<string> {
    const { metadata } = await this.client.create(VOLUME_SNAPSHOTS, {
      metadata: {
        generateName: `velero-${pvc}-`,
        namespace,
        labels: { 'velero.io/backup-name': 'backup' },
      },
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
        labels: {
          'velero.io/async-operation-id': `du-${name}`,
          'velero.io/backup-name': 'backup',
        },
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

  /** Makes a target PVC that waits for its volume, like Velero's plugin. */
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

  waitUpload(name: string, phase?: MovementPhase, timeoutMs = 90_000): Promise<DataUpload> {
    return waitFor(
      this.client,
      DATA_UPLOADS,
      { namespace: NAMESPACE, name },
      (upload) => (isThere(upload, phase) ? upload : undefined),
      { timeoutMs },
    );
  }

  waitDownload(name: string, phase?: MovementPhase, timeoutMs = 90_000): Promise<DataDownload> {
    return waitFor(
      this.client,
      DATA_DOWNLOADS,
      { namespace: NAMESPACE, name },
      (download) => (isThere(download, phase) ? download : undefined),
      { timeoutMs },
    );
  }

  /** Names of the agents' remaining intermediate objects. */
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
    await this.#environment[Symbol.asyncDispose]();
    await fs.rm(this.directory, { recursive: true, force: true });
  }
}

/**
 * Whether the CR is in the wanted phase. Default: any final phase, with all intermediate objects
 * deleted, which removes the finalizer.
 */
function isThere(movement: DataUpload | DataDownload | undefined, wanted?: MovementPhase): boolean {
  const phase = movement?.status?.phase;
  if (wanted !== undefined) return phase === wanted;
  return FINAL.includes(phase ?? '') && (movement?.metadata.finalizers ?? []).length === 0;
}
