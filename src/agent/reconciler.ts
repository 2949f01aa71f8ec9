import { type Clock, type Logger, messageOf, rfc3339Seconds } from '../base/index.ts';
import { deathOf, terminationOf, unrecoverable } from '../exposer/index.ts';
import {
  type Cache,
  type EventRecorder,
  isPassing,
  type KubeClient,
  keyOf,
  type Pod,
  PODS,
  refOf,
  type Result,
} from '../kube/index.ts';
import { DataPaths } from './data-paths.ts';
import { Ending } from './ending.ts';
import { contextOf, Exposures } from './exposures.ts';
import type { AgentMetrics } from './metrics.ts';
import { type Direction, type MoverResult } from './directions/direction.ts';
import {
  EXPOSING_LABEL,
  fieldsOf,
  hasFinalizer,
  isCancelWanted,
  isFinal,
  isSameStage,
  millisecondsSince,
  type Movement,
  ownerOf,
  phaseOf,
} from './movement.ts';
import { type Outcome, outcomeOf } from './outcome.ts';
import { MovementWriter, removeLabel } from './movement-writer.ts';
import { copyPodLog } from './pod-log.ts';
import { Restarts } from './restarts.ts';
import type { Roster } from './roster.ts';
import type { Slots } from './slots.ts';
import { Takeover } from './takeover.ts';
import { Turns } from './turns.ts';

export interface ReconcilerSettings {
  readonly node: string;
  readonly namespace: string;
  /** Values of `spec.datamover` that are served. */
  readonly dataMovers: ReadonlySet<string>;
  readonly prepareTimeoutMs: number;
  /** How often a data mover that died is started again. */
  readonly restartsMax: number;
  readonly stallTimeoutMs: number;
  /** An agent away for longer than this loses what it looks after to another. */
  readonly takeoverMs: number;
  /** CRs being exposed in the whole cluster, above which none is accepted; 0 for no limit. */
  readonly prepareQueueLength: number;
}

export interface ReconcilerOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly cache: Cache<M>;
  /** Hosting pods on this node. */
  readonly pods: Cache<Pod>;
  readonly roster: Roster;
  /** Data paths that may run on this node. */
  readonly slots: Slots;
  /** Volumes that this agent may be exposing at once. */
  readonly exposures: Slots;
  /** CRs of all kinds that are being exposed in the cluster. */
  readonly exposingCount: () => number;
  readonly recorder: EventRecorder;
  readonly metrics: AgentMetrics;
  readonly settings: ReconcilerSettings;
  /** Where the logs of data movers go when they have ended; nowhere without it. */
  readonly writeLog?: ((text: string) => void) | undefined;
  /** Looks at the key again, soon. */
  readonly enqueue: (key: string) => void;
}

/** Looks at what an agent may have missed; everything else comes by watch. */
const LOOK_MS = 5000;
const CONSTRAINED_MS = 5000;
const WAITING_MS = 1000;
/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const CANCELED_SUFFIX = 'data path is canceled';

/**
 * Drives DataUploads or DataDownloads through their phases. Every step starts from what the API server has now, so
 * that agents and movers may die at any point: what is kept in memory is only what can be made again.
 */
export class MovementReconciler<M extends Movement> {
  readonly #options: ReconcilerOptions<M>;
  readonly #writer: MovementWriter<M>;
  readonly #turns: Turns;
  readonly #exposures: Exposures<M>;
  readonly #dataPaths: DataPaths<M>;
  readonly #ending: Ending<M>;
  readonly #restarts: Restarts<M>;
  readonly #takeover: Takeover<M>;

  constructor(options: ReconcilerOptions<M>) {
    this.#options = options;
    const { client, clock, cache, direction, logger, settings } = options;
    const { namespace } = settings;
    this.#writer = new MovementWriter(client, cache, clock);
    this.#turns = new Turns(options.roster);
    this.#exposures = new Exposures(direction, options.exposures, options.enqueue);
    this.#dataPaths = new DataPaths({ client, logger, namespace, writer: this.#writer });
    const parts = {
      ...options,
      ...settings,
      writer: this.#writer,
      turns: this.#turns,
      exposures: this.#exposures,
      dataPaths: this.#dataPaths,
    };
    this.#ending = new Ending(parts);
    this.#restarts = new Restarts({ ...parts, ending: this.#ending });
    this.#takeover = new Takeover(parts);
    cache.onChange((after, before) => {
      if (!after && before && this.#isServed(before)) void this.#ending.vanished(before);
    });
  }

  /** Leaves everything as it is: movers go on by themselves, and the agent that comes back looks after them again. */
  stop(): void {
    this.#dataPaths.stop();
    this.#exposures.stop();
  }

  async reconcile(key: string, signal: AbortSignal): Promise<Result | undefined> {
    const movement = this.#writer.current(refOf(key));
    if (!movement) return undefined;
    if (!this.#isServed(movement)) return undefined;
    if (isFinal(movement)) return this.#ending.finalize(movement);
    if (movement.metadata.deletionTimestamp !== undefined && !isCancelWanted(movement)) {
      return this.#cancelDeleted(movement);
    }
    const outcome = outcomeOf(movement);
    if (outcome) return this.#goOnEnding(movement, outcome);
    switch (phaseOf(movement)) {
      case 'New':
        return this.#accept(movement, signal);
      case 'Accepted':
        return this.#prepare(movement, signal);
      case 'Prepared':
        return this.#start(movement, signal);
      case 'InProgress':
      case 'Canceling':
        return this.#watch(movement, signal);
      case 'Completed':
      case 'Failed':
      case 'Canceled':
        return undefined;
    }
  }

  #isServed({ spec }: M): boolean {
    return this.#options.settings.dataMovers.has(spec.datamover ?? '');
  }

  /** A new CR: the agent whose turn it is writes the finalizer, then claims. */
  async #accept(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { clock, settings, direction, recorder, logger } = this.#options;
    const waitMs = this.#turns.inMs(movement.metadata.uid, 'new');
    if (waitMs > 0) return { requeueAfterMs: waitMs };
    let current: M | undefined = movement;
    if (!hasFinalizer(movement)) {
      current = await this.#writer.addFinalizer(movement);
      if (!current) {
        this.#lost();
        return undefined;
      }
    }
    if (isCancelWanted(current)) {
      await this.#ending.end(current, 'Canceled', {});
      return undefined;
    }
    const problem = direction.problemOf(current);
    if (problem !== undefined) {
      await this.#ending.fail(current, problem);
      return undefined;
    }
    const { prepareQueueLength } = settings;
    if (prepareQueueLength > 0 && this.#options.exposingCount() >= prepareQueueLength) {
      return { requeueAfterMs: CONSTRAINED_MS };
    }
    if ((await direction.waitsFor(current)) !== undefined) return { requeueAfterMs: WAITING_MS };
    if (!this.#exposures.tryAcquire(current)) return { requeueAfterMs: CONSTRAINED_MS };
    let claimed: M | undefined;
    try {
      claimed = await this.#writer.exclusive(current, (copy) => {
        copy.metadata.labels = { ...copy.metadata.labels, [EXPOSING_LABEL]: 'true' };
        copy.status = {
          ...copy.status,
          phase: 'Accepted',
          acceptedByNode: settings.node,
          acceptedTimestamp: rfc3339Seconds(clock.nowNs()),
        };
      });
    } finally {
      if (!claimed) this.#exposures.release(current.metadata.uid);
    }
    if (!claimed) {
      this.#lost();
      return undefined;
    }
    this.#options.metrics.accepted(
      direction.name,
      millisecondsSince(clock, claimed.metadata.creationTimestamp),
    );
    logger.info(fieldsOf(claimed), `${direction.noun} accepted`);
    recorder.record(claimed, 'Accepted', `node ${settings.node} makes the volume available`);
    this.#exposures.start(claimed);
    return this.#prepare(claimed, signal);
  }

  /** Another agent wrote first: what it wrote comes by the watch. */
  #lost(): void {
    this.#options.metrics.conflict(this.#options.direction.name);
  }

  async #prepare(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, client, logger } = this.#options;
    const local = this.#localPod(movement);
    if (local?.status?.phase === 'Running' && !isCancelWanted(movement)) {
      return this.#setPrepared(movement, signal);
    }
    if (movement.status?.acceptedByNode !== settings.node)
      return this.#takeover.watchOver(movement);
    const { uid } = movement.metadata;
    const exposure = this.#exposures.stateOf(uid);
    if (isCancelWanted(movement)) {
      this.#exposures.abort(uid);
      if (exposure === 'running') return { requeueAfterMs: 100 };
      await this.#ending.end(movement, 'Canceled', {});
      return undefined;
    }
    if (exposure === 'running') return { requeueAfterMs: LOOK_MS };
    if (typeof exposure === 'object') {
      const { error } = exposure;
      this.#exposures.drop(uid);
      if (isPassing(error)) {
        logger.warn(
          { ...fieldsOf(movement), error: messageOf(error) },
          'expose failed; trying again',
        );
        return { requeueAfterMs: LOOK_MS };
      }
      await this.#ending.fail(movement, messageOf(error));
      return undefined;
    }
    const { namespace, name } = movement.metadata;
    const pod = await client.find(PODS, { namespace, name }, { signal });
    if (!pod || exposure === undefined) {
      // Half made by an agent that died on the way, or deleted since: each step of it finds what is there.
      // Or gone because it is over, and the watch is behind.
      const current = await this.#writer.latest(movement);
      if (!current || !isSameStage(current, movement)) return undefined;
      const since = millisecondsSince(this.#options.clock, movement.status.acceptedTimestamp);
      if (exposure === 'done' && since > settings.prepareTimeoutMs) {
        await this.#ending.fail(
          movement,
          `timeout on preparing ${direction.noun}: its pod was deleted`,
        );
        return undefined;
      }
      if (this.#exposures.tryAcquire(movement)) this.#exposures.start(movement);
      return { requeueAfterMs: LOOK_MS };
    }
    if (!isOf(pod, movement)) {
      await this.#ending.fail(movement, `pod ${name} was not made for this ${direction.noun}`);
      return undefined;
    }
    if (pod.status?.phase === 'Failed' && terminationOf(pod) === undefined) {
      return this.#startAgain(movement, pod, signal);
    }
    const broken = unrecoverable(pod);
    if (broken !== undefined) {
      await this.#ending.fail(movement, broken);
      return undefined;
    }
    if (pod.status?.phase === 'Running') {
      // On the node of another agent, which is to go on; unless there is none, for long.
      if (this.#takeover.awayInMs(movement, pod.spec.nodeName ?? '') <= 0) {
        return this.#setPrepared(movement, signal);
      }
    }
    const waitedMs = millisecondsSince(this.#options.clock, pod.metadata.creationTimestamp);
    if (waitedMs >= settings.prepareTimeoutMs) {
      const diagnosis = await direction.diagnose(movement);
      await this.#ending.fail(movement, `timeout on preparing ${direction.noun}: ${diagnosis}`);
      return undefined;
    }
    return { requeueAfterMs: Math.min(LOOK_MS, settings.prepareTimeoutMs - waitedMs) };
  }

  /** By the agent on the pod's node, which looks after the CR from here on. */
  async #setPrepared(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, logger, metrics, clock } = this.#options;
    const prepared = await this.#writer.exclusive(movement, (copy) => {
      copy.status = { ...copy.status, phase: 'Prepared', node: settings.node };
    });
    if (!prepared) {
      this.#lost();
      return undefined;
    }
    this.#exposures.drop(movement.metadata.uid);
    metrics.prepared(direction.name, millisecondsSince(clock, movement.status?.acceptedTimestamp));
    logger.info(fieldsOf(prepared), `${direction.noun} prepared`);
    return this.#start(prepared, signal);
  }

  async #start(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, slots, clock, recorder, logger, metrics } = this.#options;
    if (movement.status?.node !== settings.node) {
      this.#exposures.drop(movement.metadata.uid);
      return this.#takeover.watchOver(movement);
    }
    if (isCancelWanted(movement)) {
      await this.#ending.end(movement, 'Canceled', {});
      return undefined;
    }
    const { uid } = movement.metadata;
    this.#turns.sinceMs(uid, 'prepared');
    const pod = await this.#pod(movement, signal);
    if (!pod || isOver(pod)) {
      return this.#startAgain(movement, pod, signal);
    }
    const key = keyOf(movement.metadata);
    const wake = (): void => {
      this.#options.enqueue(key);
    };
    if (!slots.tryAcquire(uid, wake)) return { requeueAfterMs: CONSTRAINED_MS };
    try {
      await direction.waitUsable(movement, contextOf(movement, signal));
    } catch (error) {
      slots.release(uid);
      if (isPassing(error)) throw error;
      await this.#ending.fail(movement, `exposed volume is not ready: ${messageOf(error)}`);
      return undefined;
    }
    const started = await this.#writer.exclusive(movement, (copy) => {
      const os = pod.spec.os?.name === 'windows' ? 'windows' : 'linux';
      copy.status = {
        ...copy.status,
        phase: 'InProgress',
        startTimestamp: rfc3339Seconds(clock.nowNs()),
        ...(direction.name === 'upload' && { nodeOS: os }),
      };
      removeLabel(copy);
    });
    if (!started) {
      slots.release(uid);
      this.#lost();
      return undefined;
    }
    metrics.started(
      direction.name,
      millisecondsSince(clock, movement.metadata.creationTimestamp),
      this.#turns.sinceMs(uid, 'prepared'),
    );
    logger.info(fieldsOf(started), `${direction.noun} started`);
    recorder.record(started, 'Started', `node ${settings.node} moves the data`);
    return this.#watch(started, signal);
  }

  /** `InProgress` and `Canceling`: the pod decides how it ends. */
  async #watch(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, slots } = this.#options;
    const { uid } = movement.metadata;
    if (movement.status?.node !== settings.node) {
      const local = this.#localPod(movement);
      if (local?.status?.phase === 'Running') return this.#takeOver(movement, signal);
      this.#dataPaths.drop(uid);
      return this.#takeover.watchOver(movement);
    }
    slots.acquireAnyway(uid);
    if (direction.isCompleting(movement)) {
      await this.#ending.complete(movement, {}, signal);
      return undefined;
    }
    const pod = await this.#pod(movement, signal);
    const path = this.#dataPaths.of(movement);
    path.podIsRunning(pod?.status?.phase === 'Running');
    if (pod && isOver(pod)) return this.#ended(movement, pod, signal);
    if (isCancelWanted(movement)) return this.#cancel(movement, pod);
    if (!pod) return this.#startAgain(movement, undefined, signal);
    if (path.stalledMs > settings.stallTimeoutMs) {
      const minutes = Math.round(settings.stallTimeoutMs / 60_000);
      await this.#ending.fail(
        movement,
        `no progress for ${minutes} min: the data mover, the volume or the storage hangs`,
      );
      return undefined;
    }
    if (pod.status?.phase !== 'Running') {
      const broken = unrecoverable(pod);
      const waitedMs = millisecondsSince(this.#options.clock, pod.metadata.creationTimestamp);
      if (broken !== undefined || waitedMs >= settings.prepareTimeoutMs) {
        const reason = broken ?? (await direction.diagnose(movement));
        await this.#ending.fail(movement, `the data mover could not be started again: ${reason}`);
        return undefined;
      }
    }
    return { requeueAfterMs: LOOK_MS };
  }

  async #cancel(movement: M, pod: Pod | undefined): Promise<Result | undefined> {
    const { client, direction } = this.#options;
    let current = movement;
    if (phaseOf(movement) === 'InProgress') {
      const canceling = await this.#writer.exclusive(movement, (copy) => {
        copy.status = { ...copy.status, phase: 'Canceling' };
      });
      if (!canceling) {
        this.#lost();
        return undefined;
      }
      current = canceling;
      this.#options.logger.info(fieldsOf(current), `${direction.noun} is being canceled`);
    }
    const waitedMs = this.#turns.sinceMs(current.metadata.uid, 'canceling');
    if (!pod || waitedMs >= CANCEL_GRACE_MS) {
      if (pod) await client.delete(PODS, pod.metadata, { gracePeriodSeconds: 0 });
      await this.#ending.end(current, 'Canceled', {});
      return undefined;
    }
    return { requeueAfterMs: Math.min(LOOK_MS, CANCEL_GRACE_MS - waitedMs) };
  }

  /** The pod has ended: its termination message is the outcome, and a pod without one died. */
  async #ended(movement: M, pod: Pod, signal: AbortSignal): Promise<Result | undefined> {
    const { direction } = this.#options;
    const message = terminationOf(pod) ?? '';
    await copyPodLog(this.#options, pod, movement.metadata.uid);
    // A mover that said its result was done, also when it was killed before it could end well.
    const said = parseResult(message);
    if (pod.status?.phase === 'Succeeded' || said) {
      const result = said ?? {};
      // Whatever it did, nobody could find it again: it is done once more, and finds what is stored.
      const missing = direction.lacks(result);
      if (missing !== undefined) return this.#startAgain(movement, pod, signal, missing);
      await this.#ending.complete(movement, result, signal);
      return undefined;
    }
    if (message.endsWith(CANCELED_SUFFIX)) {
      // Stopped by a signal, not by us: a node that shuts down, an eviction.
      if (!isCancelWanted(movement)) return this.#startAgain(movement, pod, signal);
      await this.#ending.end(movement, 'Canceled', {});
      return undefined;
    }
    if (isCancelWanted(movement)) {
      await this.#ending.end(movement, 'Canceled', {});
      return undefined;
    }
    if (message === '') return this.#startAgain(movement, pod, signal);
    await this.#ending.fail(
      movement,
      `data path ${direction.name === 'upload' ? 'backup' : 'restore'} failed: ${message}`,
    );
    return undefined;
  }

  /** A mover that died; unless its end was another one, and the watch is behind. */
  async #startAgain(
    movement: M,
    pod: Pod | undefined,
    signal: AbortSignal,
    reason = pod ? deathOf(pod) : 'its pod is gone',
  ): Promise<Result | undefined> {
    const current = await this.#writer.latest(movement);
    if (!current || isFinal(current)) return undefined;
    if (this.#options.direction.isCompleting(current)) {
      await this.#ending.complete(current, {}, signal);
      return undefined;
    }
    if (isCancelWanted(current)) return this.#cancel(current, undefined);
    return this.#restarts.startAgain(current, pod, signal, reason);
  }

  /** The mover runs on this node, but another agent has the CR: its pod was made anew and came here. */
  async #takeOver(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const taken = await this.#writer.exclusive(movement, (copy) => {
      copy.status = { ...copy.status, node: this.#options.settings.node };
    });
    if (taken) return this.#watch(taken, signal);
    this.#lost();
    return undefined;
  }

  async #cancelDeleted(movement: M): Promise<Result | undefined> {
    const { direction, settings } = this.#options;
    const owner = ownerOf(movement);
    if (owner !== undefined && owner !== settings.node) {
      const watched = await this.#takeover.watchOver(movement);
      if (ownerOf(this.#writer.current(movement.metadata) ?? movement) !== settings.node)
        return watched;
    } else {
      const waitMs = owner === undefined ? this.#turns.inMs(movement.metadata.uid, 'deleted') : 0;
      if (waitMs > 0) return { requeueAfterMs: waitMs };
    }
    if (owner === undefined && !hasFinalizer(movement)) return undefined;
    const { name } = direction;
    const updated = await this.#writer.exclusive(movement, (copy) => {
      copy.spec.cancel = true;
      copy.status = {
        ...copy.status,
        message: `Cancel data${name} because it is being deleted`,
      };
    });
    if (updated) return { requeueAfterMs: 0 };
    this.#lost();
    return undefined;
  }

  /** An agent died while it cleaned up: the end is known, and only that is left to do. */
  async #goOnEnding(movement: M, { phase, status }: Outcome): Promise<Result | undefined> {
    const owner = ownerOf(movement);
    if (owner !== undefined && owner !== this.#options.settings.node)
      return this.#takeover.watchOver(movement);
    await this.#ending.end(movement, phase, status);
    return undefined;
  }

  /**
   * The hosting pod as this node sees it, else as the API has it: it may be on another node, and one that has ended may
   * have been replaced long before the watch tells.
   */
  async #pod(movement: M, signal: AbortSignal): Promise<Pod | undefined> {
    const local = this.#localPod(movement);
    if (local && !isOver(local)) return local;
    const { namespace, name } = movement.metadata;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    return pod && isOf(pod, movement) ? pod : undefined;
  }

  #localPod(movement: M): Pod | undefined {
    const pod = this.#options.pods.get(movement.metadata);
    if (!pod || pod.metadata.deletionTimestamp !== undefined) return undefined;
    return isOf(pod, movement) ? pod : undefined;
  }
}

const isOver = ({ status }: Pod): boolean =>
  status?.phase === 'Succeeded' || status?.phase === 'Failed';

const isOf = ({ metadata }: Pod, movement: Movement): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === movement.metadata.uid) === true;

/** Undefined for what is no result: failures are sentences. */
function parseResult(message: string): MoverResult | undefined {
  if (!message.startsWith('{')) return undefined;
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return undefined;
  }
}
