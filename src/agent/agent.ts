import type { Clock, Logger } from '../base/index.ts';
import type { ExposerOptions } from '../exposer/index.ts';
import {
  Cache,
  Controller,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  EventRecorder,
  type KubeClient,
  type KubeObject,
  keyOf,
  type Pod,
  PODS,
} from '../kube/index.ts';
import { AgentMetrics } from './metrics.ts';
import { downloads } from './directions/downloads.ts';
import { uploads } from './directions/uploads.ts';
import { EXPOSING_LABEL, type Movement, phaseOf, trimmed } from './movement.ts';
import { exposuresOf } from './node-agent-config.ts';
import { PodVolumes } from './pod-volumes.ts';
import { MovementReconciler, type ReconcilerSettings } from './reconciler.ts';
import { Roster } from './roster.ts';
import { Slots } from './slots.ts';

export interface AgentOptions extends ReconcilerSettings {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly exposer: Omit<
    ExposerOptions,
    'client' | 'clock' | 'logger' | 'namespace' | 'prepareTimeoutMs'
  >;
  /** Data paths that may run on this node at once. */
  readonly concurrency: number;
  /** Of the agent's container, to be shown. */
  readonly memoryLimitBytes?: number | undefined;
  /** Label selector of the node-agents' own pods. */
  readonly agentSelector: string;
  /** This agent is in place of Velero's: file-system backups and restores are nobody else's. */
  readonly endsPodVolumes?: boolean;
  /** Where the logs of data movers go when they have ended. */
  readonly writeLog?: (text: string) => void;
}

/** Looks at so many CRs of a kind at once; each waits for the API server most of the time. */
const WORKERS = 8;
/** An agent that has not heard the API server for so long is not ready. */
const SILENT_MS_MAX = 180_000;
const HOSTING_PODS = 'velero.io/exposer-pod-group';

/** The node-agent: claims DataUploads and DataDownloads, exposes their volumes, watches their data movers. */
export class Agent {
  readonly metrics: AgentMetrics;
  readonly #options: AgentOptions;
  readonly #caches: Cache<never>[] = [];
  readonly #slots: Slots;
  readonly #exposures: Slots;
  #stage: 'starting' | 'running' | 'draining' | 'stopped' = 'starting';

  constructor(options: AgentOptions) {
    this.#options = options;
    this.metrics = new AgentMetrics(options.node);
    this.#slots = new Slots(options.concurrency);
    this.#exposures = new Slots(exposuresOf(options.concurrency));
  }

  get stage(): string {
    return this.#stage;
  }

  /** Ready once everything was listed; why not, in words. */
  notReady(): string | undefined {
    if (this.#stage !== 'running') return `the agent is ${this.#stage}`;
    return this.#outOfSight();
  }

  /**
   * Why the API server is out of sight; undefined while all is well. No reason to start anew: after an outage all agents
   * would ask for everything at once, and their movers would be without them for longer.
   */
  #outOfSight(): string | undefined {
    for (const cache of this.#caches) {
      if (cache.isSynced && cache.silentMs > SILENT_MS_MAX) {
        const seconds = Math.round(cache.silentMs / 1000);
        const why = cache.failure ?? 'its watch says nothing';
        return `no response from the API server for ${cache.resource.plural} for ${seconds} s: ${why}`;
      }
    }
    return undefined;
  }

  /** Runs until aborted; movers then go on by themselves, and CRs stay as they are for the agent that comes back. */
  async run(signal: AbortSignal): Promise<void> {
    const { client, logger, namespace, node, agentSelector } = this.#options;
    const scope = { namespace };
    const uploadCache = this.#addCache(
      new Cache({ client, logger, scope, resource: DATA_UPLOADS, trim: trimmed }),
    );
    const downloadCache = this.#addCache(
      new Cache({ client, logger, scope, resource: DATA_DOWNLOADS, trim: trimmed }),
    );
    const pods = this.#addCache(
      new Cache({
        client,
        logger,
        resource: PODS,
        scope: { namespace, fieldSelector: `spec.nodeName=${node}`, labelSelector: HOSTING_PODS },
      }),
    );
    const agents = this.#addCache(
      new Cache({
        client,
        logger,
        resource: PODS,
        scope: { namespace, labelSelector: agentSelector },
      }),
    );
    const { clock } = client;
    const recorder = new EventRecorder({
      client,
      clock,
      logger,
      component: 'longshore-node-agent',
      host: node,
    });
    const exposing = (cache: MovementList): number =>
      cache.list().filter(({ metadata }) => metadata.labels?.[EXPOSING_LABEL] === 'true').length;
    const roster = new Roster(agents, node);
    const parts: Parts = {
      clock,
      recorder,
      pods,
      roster,
      exposingCount: () => exposing(uploadCache) + exposing(downloadCache),
    };
    const exposer = {
      ...this.#options.exposer,
      client,
      clock,
      logger,
      namespace,
      prepareTimeoutMs: this.#options.prepareTimeoutMs,
    };
    const running = [
      this.#control(uploads(exposer), uploadCache, parts),
      this.#control(downloads(exposer), downloadCache, parts),
    ];
    this.#observe(uploadCache, downloadCache);
    const work = this.#caches.map((cache) => cache.run(signal));
    await Promise.race([Promise.all(this.#caches.map(({ synced }) => synced)), aborted(signal)]);
    if (!signal.aborted) {
      this.#stage = 'running';
      logger.info({ node, namespace }, 'node-agent is running');
    }
    const others = this.#options.endsPodVolumes
      ? [new PodVolumes({ client, logger, namespace, node, roster }).run(signal)]
      : [];
    await Promise.all([
      ...work,
      ...others,
      ...running.map(({ controller }) => controller.run(signal)),
    ]);
    this.#stage = 'draining';
    for (const { reconciler } of running) reconciler.stop();
    await recorder.flush();
    this.#stage = 'stopped';
  }

  #addCache<T extends KubeObject>(cache: Cache<T>): Cache<T> {
    this.#caches.push(cache as unknown as Cache<never>);
    return cache;
  }

  #control<M extends Movement>(
    direction: Parameters<typeof createReconciler<M>>[0]['direction'],
    cache: Cache<M>,
    parts: Parts,
  ): { controller: Controller; reconciler: { stop(): void } } {
    const { client, logger } = this.#options;
    const reconciler: MovementReconciler<M> = createReconciler({
      ...parts,
      direction,
      client,
      logger,
      cache,
      slots: this.#slots,
      exposures: this.#exposures,
      metrics: this.metrics,
      settings: this.#options,
      writeLog: this.#options.writeLog,
      enqueue: (key) => {
        controller.queue.add(key);
      },
    });
    const controller = new Controller({
      name: direction.resource.kind,
      workers: WORKERS,
      logger,
      reconcile: (key, signal) => reconciler.reconcile(key, signal),
    });
    cache.onChange((after, before) => {
      const seen = after ?? before;
      if (seen) controller.queue.add(keyOf(seen.metadata));
    });
    parts.pods.onChange((after, before) => {
      const pod = after ?? before;
      const name = pod && direction.hostedName(pod);
      if (pod === undefined || name === undefined) return;
      const ref = { namespace: pod.metadata.namespace, name };
      if (!after) reconciler.podGone(pod, ref);
      controller.queue.add(keyOf(ref));
    });
    return { controller, reconciler };
  }

  #observe(uploadCache: MovementList, downloadCache: MovementList): void {
    const count = function* (
      direction: 'upload' | 'download',
      cache: MovementList,
    ): Generator<{ direction: 'upload' | 'download'; phase: string; count: number }> {
      const counts = new Map<string, number>();
      for (const movement of cache.list()) {
        const phase = phaseOf(movement);
        counts.set(phase, (counts.get(phase) ?? 0) + 1);
      }
      for (const [phase, of] of counts) yield { direction, phase, count: of };
    };
    this.metrics.observe({
      phases: () => [...count('upload', uploadCache), ...count('download', downloadCache)],
      dataPaths: () => ({ used: this.#slots.used, limit: this.#slots.limit }),
      memoryLimitBytes: this.#options.memoryLimitBytes,
      exposing: () => this.#exposures.used,
      silentSeconds: () => Math.max(...this.#caches.map(({ silentMs }) => silentMs)) / 1000,
    });
  }
}

interface MovementList {
  list(): Movement[];
}

interface Parts {
  readonly clock: Clock;
  readonly recorder: EventRecorder;
  readonly pods: Cache<Pod>;
  readonly roster: Roster;
  readonly exposingCount: () => number;
}

const createReconciler = <M extends Movement>(
  options: ConstructorParameters<typeof MovementReconciler<M>>[0],
): MovementReconciler<M> => new MovementReconciler(options);

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener(
      'abort',
      () => {
        resolve();
      },
      { once: true },
    );
  });
