import type { Clock, Logger } from '../base/index.ts';
import { type ExposerOptions, isWaitOver } from '../exposer/index.ts';
import {
  Cache,
  Controller,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  EventRecorder,
  keyOf,
  type KubeClient,
  type KubeObject,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  type PodVolumeBackup,
  type PodVolumeRestore,
  RESTORE_NAME,
} from '../kube/index.ts';
import { PhaseCounts } from './status/phase-counts.ts';
import { AgentMetrics } from './metrics.ts';
import { type DirectionName, DIRECTIONS } from './directions/direction.ts';
import { downloads } from './directions/downloads.ts';
import { podVolumeBackups, podVolumeRestores } from './directions/pod-volumes.ts';
import { uploads } from './directions/uploads.ts';
import { isFinal, type Movement, trimmed } from './movement.ts';
import { Backlog } from './reconcile/node-backlog.ts';
import { exposuresLeast, exposuresOf } from './node-agent-config.ts';
import { MoverLogs, type MoverLogStore } from './mover/mover-logs.ts';
import { MovementReconciler, type ReconcilerSettings } from './reconcile/reconciler.ts';
import { Roster, trimmedAgent } from './reconcile/roster.ts';
import { Slots } from './reconcile/slots.ts';
import {
  endedPod,
  isLeaving,
  RestoresByPod,
  SharedClaims,
  trimmedRestored,
} from './mover/restored-pods.ts';

export interface AgentOptions extends ReconcilerSettings {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly exposer: Omit<
    ExposerOptions,
    'client' | 'clock' | 'logger' | 'namespace' | 'prepareTimeoutMs'
  >;
  /** Data paths that may run on this node at once. */
  readonly concurrency: number;
  /** Memory limit of the agent's container, exported as a metric. */
  readonly memoryLimitBytes?: number | undefined;
  /** Label selector of the node-agents' own pods. */
  readonly agentSelector: string;
  /** This agent replaces Velero's, so it also serves file-system backups and restores. */
  readonly servesPodVolumes?: boolean;
  /** Receives the log of each data mover that ended. */
  readonly writeLog?: (text: string) => void;
  /** Stores the logs of data movers in the bucket, with their backup or restore. Optional. */
  readonly moverLogStore?: MoverLogStore | undefined;
}

/** CRs of one kind reconciled at once. They mostly wait for the API server. */
const WORKERS = 8;
/** An agent without contact to the API server for this long is not ready. */
const SILENT_MS_MAX = 180_000;
/** How often waiting CRs are called, and how much each agent adds to that interval. */
const CALL_MS = 5000;
const CALL_STEP_MS = 30;
const HOSTING_PODS = 'velero.io/exposer-pod-group';

/** On everything that Velero restores (Velero: pkg/restore/restore.go, addRestoreLabels). */
const RESTORED = RESTORE_NAME;

/** The node-agent: claims CRs, exposes their volumes and watches their data movers. */
export class Agent {
  readonly metrics: AgentMetrics;
  readonly #options: AgentOptions;
  readonly #caches: Cache<never>[] = [];
  readonly #slots: Slots;
  /** Each direction has its own queue, and some places that the others cannot take. */
  readonly #exposures: Readonly<Record<DirectionName, Slots>>;
  /** Places for hosting pods that must run here, because this node's pods use the volumes. */
  readonly #hosted: Readonly<Partial<Record<DirectionName, Slots>>>;
  #stage: 'starting' | 'running' | 'draining' | 'stopped' = 'starting';

  constructor(options: AgentOptions) {
    this.#options = options;
    this.metrics = new AgentMetrics(options.node);
    this.#slots = new Slots(options.concurrency);
    const places = exposuresOf(options.concurrency);
    const shared = {
      usedByAll: () => this.#exposing,
      least: exposuresLeast(options.concurrency),
    };
    const line = (): Slots => new Slots(places, shared);
    const hosted = { ...shared, usedByAll: () => usedOf(this.#hosted) };
    this.#exposures = {
      upload: line(),
      download: line(),
      'pod-volume-backup': line(),
      'pod-volume-restore': line(),
    };
    this.#hosted = {
      'pod-volume-backup': new Slots(places, hosted),
      'pod-volume-restore': new Slots(places, hosted),
    };
  }

  get #exposing(): number {
    return usedOf(this.#exposures);
  }

  get stage(): string {
    return this.#stage;
  }

  /** Undefined once everything is listed; otherwise the reason, in words. */
  notReady(): string | undefined {
    if (this.#stage !== 'running') return `the agent is ${this.#stage}`;
    return this.#outOfSight();
  }

  /**
   * Why the API server is unreachable; undefined while it answers. Not a reason to restart: after
   * an outage all agents would list everything at once, and movers would wait longer.
   */
  #outOfSight(): string | undefined {
    for (const cache of this.#caches) {
      if (cache.isSynced && cache.silentMs > SILENT_MS_MAX) {
        const seconds = Math.round(cache.silentMs / 1000);
        const why = cache.failure ?? 'the watch is silent';
        return `no response from the API server for ${cache.resource.plural} for ${seconds} s: ${why}`;
      }
    }
    return undefined;
  }

  /** Runs until aborted. Movers then continue alone, and CRs stay unchanged for the next agent. */
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
        trim: trimmedAgent,
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
    const podVolumes = this.#options.servesPodVolumes ? this.#addPodVolumeCaches() : undefined;
    const counts: Partial<Record<DirectionName, PhaseCounts>> = {
      upload: new PhaseCounts(uploadCache),
      download: new PhaseCounts(downloadCache),
      ...(podVolumes && {
        'pod-volume-backup': new PhaseCounts(podVolumes.backups),
        'pod-volume-restore': new PhaseCounts(podVolumes.restores),
      }),
    };
    const roster = new Roster(agents, node);
    const movements = [
      uploadCache,
      downloadCache,
      ...(podVolumes ? [podVolumes.backups, podVolumes.restores] : []),
    ];
    const { moverLogStore: store } = this.#options;
    const moverLogs = store && new MoverLogs({ client, clock, logger, namespace, store });
    const parts: Parts = {
      moverLogs,
      clock,
      recorder,
      pods,
      roster,
      exposingCount: () => Object.values(counts).reduce((sum, { exposing }) => sum + exposing, 0),
      backlog: new Backlog(movements, { ...this.#options, roster }),
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
      ...(podVolumes ? this.#controlPodVolumes(exposer, podVolumes, parts) : []),
    ];
    this.#observe(counts);
    this.#callWaiting(roster, signal);
    const work = this.#caches.map((cache) => cache.run(signal));
    await Promise.race([Promise.all(this.#caches.map(({ synced }) => synced)), aborted(signal)]);
    for (const { reconciler } of running) reconciler.takePlaces();
    if (!signal.aborted) {
      this.#stage = 'running';
      logger.info({ node, namespace }, 'node-agent is running');
    }
    await Promise.all([...work, ...running.map(({ controller }) => controller.run(signal))]);
    this.#stage = 'draining';
    await Promise.all(running.map(({ reconciler }) => reconciler.drain()));
    for (const { reconciler } of running) reconciler.stop();
    await moverLogs?.drain();
    await recorder.flush();
    this.#stage = 'stopped';
  }

  #addCache<T extends KubeObject>(cache: Cache<T>): Cache<T> {
    this.#caches.push(cache as unknown as Cache<never>);
    return cache;
  }

  #addPodVolumeCaches(): PodVolumeCaches {
    const { client, logger, namespace, node } = this.#options;
    const scope = { namespace };
    return {
      backups: this.#addCache(
        new Cache({ client, logger, scope, resource: POD_VOLUME_BACKUPS, trim: trimmed }),
      ),
      restores: this.#addCache(
        new Cache({ client, logger, scope, resource: POD_VOLUME_RESTORES, trim: trimmed }),
      ),
      restoredPods: this.#addCache(
        new Cache({
          client,
          logger,
          resource: PODS,
          scope: { fieldSelector: `spec.nodeName=${node}`, labelSelector: RESTORED },
          trim: trimmedRestored,
        }),
      ),
    };
  }

  #controlPodVolumes(
    exposer: ExposerOptions,
    { backups, restores, restoredPods }: PodVolumeCaches,
    parts: Parts,
  ): Running[] {
    const { node } = this.#options;
    const byPod = new RestoresByPod(restores);
    const restoring = this.#control(
      podVolumeRestores({ exposer, node, restoredPods, sharedClaims: new SharedClaims(byPod) }),
      restores,
      parts,
    );
    const lookAgain = (pod: Parameters<typeof byPod.waitingFor>[0]): void => {
      for (const key of byPod.waitingFor(pod)) restoring.reconciler.targetChanged(key);
    };
    restoredPods.onChange((after, before) => {
      const pod = after ?? before;
      if (!pod) return;
      lookAgain(pod.metadata);
      const ended = endedPod(after, before);
      if (ended && isWaitOver(ended)) {
        for (const key of byPod.underWay(ended.metadata)) {
          restoring.reconciler.targetWentOn(key, ended.metadata.uid);
        }
      }
      if (!isLeaving(after, before)) return;
      for (const key of byPod.underWay(pod.metadata)) restoring.reconciler.podLost(key);
    });
    restores.onChange((after, before) => {
      if (before && !isFinal(before) && (!after || isFinal(after))) lookAgain(before.spec.pod);
    });
    return [this.#control(podVolumeBackups({ exposer, node }), backups, parts), restoring];
  }

  #control<M extends Movement>(
    direction: Parameters<typeof createReconciler<M>>[0]['direction'],
    cache: Cache<M>,
    parts: Parts,
  ): Running {
    const { client, logger } = this.#options;
    const reconciler: MovementReconciler<M> = createReconciler({
      ...parts,
      direction,
      client,
      logger,
      cache,
      slots: this.#slots,
      exposures: this.#exposures[direction.name],
      hosted: this.#hosted[direction.name],
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

  /**
   * A free place on this node wakes the next CR. No event tells when the cluster-wide queue or the
   * other nodes have room, so CRs are also called on a timer. The timers are spread, because each
   * agent sees the claims of others late.
   */
  #callWaiting(roster: Roster, signal: AbortSignal): void {
    const { prepareQueueLength } = this.#options;
    let timer: NodeJS.Timeout | undefined;
    const next = (): void => {
      const spreadMs = prepareQueueLength > 0 ? roster.nodes().size * CALL_STEP_MS : 0;
      timer = setTimeout(
        () => {
          const lines = [...Object.values(this.#exposures), ...Object.values(this.#hosted)];
          for (const places of lines) places.wake();
          next();
        },
        Math.max(CALL_MS, spreadMs) * (0.5 + Math.random()),
      );
      timer.unref();
    };
    next();
    signal.addEventListener('abort', () => clearTimeout(timer), { once: true });
  }

  #observe(counts: Readonly<Partial<Record<DirectionName, PhaseCounts>>>): void {
    this.metrics.observe({
      phases: () =>
        DIRECTIONS.flatMap((direction) =>
          [...(counts[direction]?.phases ?? [])].map(([phase, count]) => ({
            direction,
            phase,
            count,
          })),
        ),
      dataPaths: () => ({ used: this.#slots.used, limit: this.#slots.limit }),
      memoryLimitBytes: this.#options.memoryLimitBytes,
      exposing: () => this.#exposing,
      silentSeconds: () => Math.max(...this.#caches.map(({ silentMs }) => silentMs)) / 1000,
    });
  }
}

interface Running {
  readonly controller: Controller;
  readonly reconciler: {
    podLost(key: string): void;
    targetWentOn(key: string, podUid: string): void;
    takePlaces(): void;
    stop(): void;
    drain(): Promise<void>;
    targetChanged(key: string): void;
  };
}

interface PodVolumeCaches {
  readonly backups: Cache<PodVolumeBackup>;
  readonly restores: Cache<PodVolumeRestore>;
  /** On this node. */
  readonly restoredPods: Cache<Pod>;
}

interface Parts {
  readonly moverLogs: MoverLogs | undefined;
  readonly clock: Clock;
  readonly recorder: EventRecorder;
  readonly pods: Cache<Pod>;
  readonly roster: Roster;
  readonly exposingCount: () => number;
  readonly backlog: Backlog;
}

const usedOf = (places: Readonly<Record<string, Slots>>): number =>
  Object.values(places).reduce((sum, { used }) => sum + used, 0);

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
