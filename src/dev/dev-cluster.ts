import { existsSync, readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type Clock, type Logger, rfc3339Seconds, systemClock } from '../base/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  DAEMON_SETS,
  isPodOver,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type NewObject,
  NODES,
  PODS,
  type PodSpec,
  type Resource,
  SECRETS,
  STORAGE_CLASSES,
  VOLUME_SNAPSHOT_CLASSES,
} from '../kube/index.ts';
import { ClusterControllers } from './cluster-controllers.ts';
import { NamespaceController } from './namespace-controller.ts';
import { IN_PROCESS, PodRunner } from './pod-runner.ts';
import { RepositoryKeeper } from './repository-keeper.ts';
import { DEFAULT_SNAPSHOT_CLASS, DEFAULT_STORAGE_CLASS } from './api-server/resources.ts';
import { SIMULATED_DRIVER, SimulatedCsi } from './simulated-csi.ts';

export interface DevClusterOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly clock?: Clock;
  readonly directory: string;
  readonly namespace: string;
  readonly nodes: readonly string[];
  /** Starts the command line of this project. Replaces `/velero` in a pod. */
  readonly command: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly repositoryPassword: string;
  /** Undefined if another component prepares repositories. */
  readonly prepareRepository: ((repository: BackupRepository) => Promise<void>) | undefined;
  readonly snapshotMs?: number;
  /** False if a real scheduler and volume controller run. */
  readonly withControllers: boolean;
}

export const STORAGE_CLASS = 'dir';
export const LATE_STORAGE_CLASS = 'dir-wait';
const SNAPSHOT_CLASS = 'dir-snap';
/** The program that pods of data movers start in the image. */
const MOVER = '/velero';
const ROOM = { cpu: '64', memory: '256Gi', pods: '1000' };
const NODE_STATUS = {
  capacity: ROOM,
  allocatable: ROOM,
  conditions: [{ type: 'Ready', status: 'True', reason: 'Simulated' }],
  nodeInfo: { kubeletVersion: 'simulated', osImage: 'simulated' },
};

/** A kubelet's status for containers that it does not find after a restart. */
const lostStatus = ({ containers }: PodSpec): object => ({
  phase: 'Failed',
  conditions: [{ type: 'Ready', status: 'False' }],
  containerStatuses: containers.map(({ name, image = '' }) => ({
    name,
    image,
    imageID: '',
    ready: false,
    restartCount: 0,
    state: {
      terminated: {
        exitCode: 137,
        reason: 'ContainerStatusUnknown',
        message: 'The cluster was stopped while the container ran',
      },
    },
  })),
});

/** Simulates the rest of a cluster: nodes that run pods, a CSI driver, Velero's objects. */
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
          kubeletPods: join(directory, 'kubelet', 'pods'),
          isKnown: ([program]) => program === MOVER,
          commandOf: ([, ...rest]) => [...command, ...rest],
          environment,
        }),
      ]),
    );
  }

  /** The directory of the repositories of the location `default`. */
  get storageDirectory(): string {
    return join(this.#options.directory, 'bucket');
  }

  /** The output of a pod so far. */
  podLog(name: string): string | undefined {
    for (const runner of this.runners.values()) {
      const path = runner.logPath(name);
      if (existsSync(path)) return readFileSync(path, 'utf8');
    }
    return undefined;
  }

  /** Cleans up after an earlier run: removed nodes, and pods without processes. */
  async resume(): Promise<void> {
    const { client, nodes } = this.#options;
    const isOurs = (name = ''): boolean => nodes.includes(name);
    for (const { metadata } of await client.list(NODES)) {
      if (!isOurs(metadata.name)) await client.delete(NODES, metadata);
    }
    for (const { metadata, spec, status } of await client.list(PODS)) {
      if (!spec.nodeName) continue;
      const isInProcess = metadata.annotations?.[IN_PROCESS] !== undefined;
      if (isInProcess && !isOurs(spec.nodeName)) await client.delete(PODS, metadata);
      if (isInProcess || isPodOver(status?.phase)) continue;
      if (status?.phase !== 'Running' && isOurs(spec.nodeName)) continue;
      await client.patch(PODS, metadata, { status: lostStatus(spec) }, { subresource: 'status' });
    }
  }

  /** Creates namespaces, nodes, classes and Velero's objects. Existing objects stay. */
  async seed(): Promise<void> {
    const { client, directory, namespace, nodes, repositoryPassword, withControllers } =
      this.#options;
    const { clock = systemClock } = this.#options;
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
      // For a real scheduler: gives the node resources, and removes the taint of a node that never
      // reported.
      await client.patch(NODES, { name }, { spec: { taints: null } });
      await client.patch(NODES, { name }, { status: NODE_STATUS }, { subresource: 'status' });
    }
    for (const [name, volumeBindingMode] of [
      [STORAGE_CLASS, 'Immediate'],
      [LATE_STORAGE_CLASS, 'WaitForFirstConsumer'],
    ] as const) {
      await add(STORAGE_CLASSES, {
        metadata: {
          name,
          // A real cluster may have its own default class, and other tests that use it.
          ...(withControllers &&
            name === STORAGE_CLASS && { annotations: { [DEFAULT_STORAGE_CLASS]: 'true' } }),
        },
        provisioner: SIMULATED_DRIVER,
        volumeBindingMode,
        reclaimPolicy: 'Delete',
      });
    }
    if (withControllers) {
      await add(VOLUME_SNAPSHOT_CLASSES, {
        metadata: {
          name: SNAPSHOT_CLASS,
          labels: { 'velero.io/csi-volumesnapshot-class': 'true' },
          annotations: { [DEFAULT_SNAPSHOT_CLASS]: 'true' },
        },
        driver: SIMULATED_DRIVER,
        deletionPolicy: 'Delete',
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
      // The status that Velero's server sets for an available location.
      ...(withControllers && {
        status: { phase: 'Available', lastValidationTime: rfc3339Seconds(clock.nowNs()) },
      }),
    });
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
                command: [MOVER],
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
            volumes: [
              { name: 'host-pods', hostPath: { path: join(directory, 'kubelet', 'pods') } },
            ],
          },
        },
      },
    } as never);
    if (!withControllers) return;
    const counts = [
      'desiredNumberScheduled',
      'currentNumberScheduled',
      'updatedNumberScheduled',
      'numberReady',
      'numberAvailable',
    ].map((key) => [key, nodes.length] as const);
    await client.patch(
      DAEMON_SETS,
      { name: 'node-agent', namespace },
      { status: Object.fromEntries(counts) as object },
      { subresource: 'status' },
    );
  }

  /** Runs until the signal aborts, then kills the remaining pods. */
  async run(signal: AbortSignal): Promise<void> {
    const {
      client,
      logger,
      namespace,
      prepareRepository,
      withControllers,
      clock = systemClock,
    } = this.#options;
    const keeper = prepareRepository
      ? new RepositoryKeeper({ client, clock, logger, namespace, prepare: prepareRepository })
      : undefined;
    await Promise.all([
      this.csi.run(signal),
      keeper?.run(signal),
      ...[...this.runners.values()].map((runner) => runner.run(signal)),
      ...(withControllers
        ? [
            new ClusterControllers({ client, logger }).run(signal),
            new NamespaceController({ client, logger }).run(signal),
          ]
        : []),
    ]);
  }
}
