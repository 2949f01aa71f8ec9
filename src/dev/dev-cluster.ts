import { existsSync, readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, type Logger, systemClock } from '../base/index.ts';
import {
  type BackupRepository,
  BACKUP_STORAGE_LOCATIONS,
  DAEMON_SETS,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  NODES,
  type NewObject,
  type Resource,
  SECRETS,
  STORAGE_CLASSES,
} from '../kube/index.ts';
import { ClusterControllers } from './cluster-controllers.ts';
import { PodRunner } from './pod-runner.ts';
import { RepositoryKeeper } from './repository-keeper.ts';
import { SIMULATED_DRIVER, SimulatedCsi } from './simulated-csi.ts';

export interface DevClusterOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly clock?: Clock;
  readonly directory: string;
  readonly namespace: string;
  readonly nodes: readonly string[];
  /** Starts the command line of this project: what stands for `/velero` in a pod. */
  readonly command: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly repositoryPassword: string;
  readonly prepareRepository: (repository: BackupRepository) => Promise<void>;
  readonly snapshotMs?: number;
  /** False where a real scheduler and volume controller run. */
  readonly withControllers: boolean;
}

export const STORAGE_CLASS = 'dir';
export const LATE_STORAGE_CLASS = 'dir-wait';
const ROOM = { cpu: '64', memory: '256Gi', pods: '1000' };
const NODE_STATUS = {
  capacity: ROOM,
  allocatable: ROOM,
  conditions: [{ type: 'Ready', status: 'True', reason: 'Simulated' }],
};

/** What a cluster has beside its API server, simulated: nodes that run pods, a CSI driver, Velero's objects. */
export class DevCluster {
  readonly csi: SimulatedCsi;
  readonly runners: ReadonlyMap<string, PodRunner>;
  readonly #options: DevClusterOptions;

  constructor(options: DevClusterOptions) {
    this.#options = options;
    const { client, logger, directory, command, environment, snapshotMs } = options;
    this.csi = new SimulatedCsi({
      client,
      logger,
      directory: join(directory, 'storage'),
      ...(snapshotMs !== undefined && { snapshotMs }),
    });
    this.runners = new Map(
      options.nodes.map((node) => [
        node,
        new PodRunner({
          client,
          logger,
          node,
          directory: join(directory, 'pods', node),
          volumePath: (handle) => this.csi.volumePath(handle),
          commandOf: ([, ...rest]) => [...command, ...rest],
          environment,
        }),
      ]),
    );
  }

  /** Where the repositories of the location `default` lie. */
  get storageDirectory(): string {
    return join(this.#options.directory, 'bucket');
  }

  /** What a pod has written so far. */
  podLog(name: string): string | undefined {
    for (const runner of this.runners.values()) {
      const path = runner.logPath(name);
      if (existsSync(path)) return readFileSync(path, 'utf8');
    }
    return undefined;
  }

  /** Namespaces, nodes, classes, and what an installed Velero has; what is there already stays. */
  async seed(): Promise<void> {
    const { client, namespace, nodes, repositoryPassword } = this.#options;
    await fs.mkdir(this.storageDirectory, { recursive: true });
    const add = async <T extends KubeObject>(
      resource: Resource<T>,
      object: NewObject<T>,
    ): Promise<void> => {
      if (await client.find(resource, { ...object.metadata, name: object.metadata.name ?? '' }))
        return;
      await client.create(resource, object);
    };
    await add(NAMESPACES, { metadata: { name: namespace } });
    for (const name of nodes) {
      await add(NODES, {
        metadata: { name, labels: { 'kubernetes.io/os': 'linux', 'kubernetes.io/hostname': name } },
      });
      // For a real scheduler: it has room, and is not tainted as a node is that never reported.
      await client.patch(NODES, { name }, { spec: { taints: null } });
      await client.patch(NODES, { name }, { status: NODE_STATUS }, { subresource: 'status' });
    }
    for (const [name, volumeBindingMode] of [
      [STORAGE_CLASS, 'Immediate'],
      [LATE_STORAGE_CLASS, 'WaitForFirstConsumer'],
    ] as const) {
      await add(STORAGE_CLASSES, {
        metadata: { name },
        provisioner: SIMULATED_DRIVER,
        volumeBindingMode,
        reclaimPolicy: 'Delete',
      });
    }
    await add(SECRETS, {
      metadata: { name: 'velero-repo-credentials', namespace },
      data: { 'repository-password': Buffer.from(repositoryPassword).toString('base64') },
    });
    await add(BACKUP_STORAGE_LOCATIONS, {
      metadata: { name: 'default', namespace },
      spec: {
        provider: 'velero.io/fs',
        config: { fspath: this.storageDirectory },
        objectStorage: { bucket: 'default' },
        default: true,
      },
    } as NewObject<KubeObject>);
    await add(DAEMON_SETS, {
      metadata: { name: 'node-agent', namespace },
      spec: {
        selector: { matchLabels: { name: 'node-agent' } },
        template: {
          metadata: { labels: { name: 'node-agent', role: 'node-agent' } },
          spec: {
            containers: [
              {
                name: 'node-agent',
                image: 'longshore',
                command: ['/velero'],
                args: ['node-agent', 'server'],
                env: [
                  { name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } },
                  {
                    name: 'VELERO_NAMESPACE',
                    valueFrom: { fieldRef: { fieldPath: 'metadata.namespace' } },
                  },
                ],
              },
            ],
          },
        },
      },
    } as never);
  }

  /** Runs until aborted; pods that still run are killed then. */
  async run(signal: AbortSignal): Promise<void> {
    const {
      client,
      logger,
      namespace,
      prepareRepository,
      withControllers,
      clock = systemClock,
    } = this.#options;
    const keeper = new RepositoryKeeper({
      client,
      clock,
      logger,
      namespace,
      prepare: prepareRepository,
    });
    await Promise.all([
      this.csi.run(signal),
      keeper.run(signal),
      ...[...this.runners.values()].map((runner) => runner.run(signal)),
      ...(withControllers ? [new ClusterControllers({ client, logger }).run(signal)] : []),
    ]);
  }
}
