import {
  type Clock,
  isCanceled,
  isCode,
  type Logger,
  messageOf,
  rfc3339Seconds,
} from '../base/index.ts';
import { deathOf, terminationOf, unrecoverable } from '../exposer/index.ts';
import {
  type Cache,
  type EventRecorder,
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
import {
  type Direction,
  EXPOSING_LABEL,
  fieldsOf,
  hasFinalizer,
  isSameStage,
  isCancelWanted,
  isFinal,
  millisecondsSince,
  type Movement,
  type MoverResult,
  type Outcome,
  outcomeOf,
  ownerOf,
  phaseOf,
  RESTARTING,
  RESTARTS,
} from './movement.ts';
import { MovementWriter, removeLabel } from './movement-writer.ts';
import { copyPodLog } from './pod-log.ts';
import type { Roster } from './roster.ts';
import type { Slots } from './slots.ts';
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
const WATCH_OVER_MS = 30_000;
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

  constructor(options: ReconcilerOptions<M>) {
    this.#options = options;
    const { client, clock, cache, direction, logger, settings } = options;
    const { namespace, node } = settings;
    this.#writer = new MovementWriter(client, cache, clock);
    this.#turns = new Turns(options.roster);
    this.#exposures = new Exposures(direction, options.exposures, options.enqueue);
    this.#dataPaths = new DataPaths({ client, logger, namespace, writer: this.#writer });
    this.#ending = new Ending({
      ...options,
      node,
      writer: this.#writer,
      turns: this.#turns,
      exposures: this.#exposures,
      dataPaths: this.#dataPaths,
    });
    cache.onChange((after, before) => {
      if (!after && before) void this.#ending.vanished(before);
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
    const { settings } = this.#options;
    if (!settings.dataMovers.has(movement.spec.datamover ?? '')) return undefined;
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
    if (movement.status?.acceptedByNode !== settings.node) return this.#watchOver(movement);
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
      if (!this.#exposures.tryAcquire(movement)) return { requeueAfterMs: LOOK_MS };
      const since = millisecondsSince(this.#options.clock, movement.status.acceptedTimestamp);
      if (exposure === 'done' && since > settings.prepareTimeoutMs) {
        this.#exposures.release(uid);
        await this.#ending.fail(
          movement,
          `timeout on preparing ${direction.noun}: its pod was deleted`,
        );
        return undefined;
      }
      this.#exposures.start(movement);
      return { requeueAfterMs: LOOK_MS };
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
      if (this.#awayInMs(movement, pod.spec.nodeName ?? '') <= 0) {
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
      return this.#watchOver(movement);
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
      return this.#watchOver(movement);
    }
    slots.acquireAnyway(uid);
    if (direction.isCompleting(movement)) {
      await this.#complete(movement, {}, signal);
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
    if (pod.status?.phase === 'Succeeded') {
      const result = parseResult(message);
      // Whatever it did, nobody could find it again: it is done once more, and finds what is stored.
      const missing = direction.lacks(result);
      if (missing !== undefined) return this.#startAgain(movement, pod, signal, missing);
      await this.#complete(movement, result, signal);
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

  async #complete(movement: M, result: MoverResult, signal: AbortSignal): Promise<void> {
    const { direction, recorder, metrics, clock, logger } = this.#options;
    // Another agent may have it by now, and would be disturbed.
    const current = await this.#writer.latest(movement);
    if (!current || !isSameStage(current, movement)) return;
    let fields: object;
    try {
      fields = await direction.complete(movement, result, contextOf(movement, signal));
    } catch (error) {
      if (isPassing(error)) throw error;
      await this.#ending.fail(movement, messageOf(error));
      return;
    }
    const before = this.#writer.current(movement.metadata)?.status?.progress;
    const total = Math.max(result.totalBytes ?? before?.totalBytes ?? 0, before?.bytesDone ?? 0);
    const done = await this.#ending.end(movement, 'Completed', {
      message: '',
      ...fields,
      progress: total > 0 ? { totalBytes: total, bytesDone: total } : {},
    });
    if (!done) return;
    const ms = millisecondsSince(clock, done.status?.startTimestamp);
    metrics.moved(direction.name, total, ms, result.incrementalBytes ?? 0);
    logger.info(
      { ...fieldsOf(done), bytes: total, seconds: ms / 1000 },
      `${direction.noun} completed`,
    );
    recorder.record(done, 'Completed', `${total} bytes moved in ${Math.round(ms / 1000)} s`);
  }

  /** Starts a mover that died again, from what it had stored; the CR stays as it is, with a message. */
  async #startAgain(
    movement: M,
    pod: Pod | undefined,
    signal: AbortSignal,
    reason = pod ? deathOf(pod) : 'its pod is gone',
  ): Promise<Result | undefined> {
    const { direction } = this.#options;
    // The watch may be behind: what looks dead may have been moved, and its pod removed for that.
    const current = await this.#writer.latest(movement);
    if (!current || isFinal(current)) return undefined;
    if (direction.isCompleting(current)) {
      await this.#complete(current, {}, signal);
      return undefined;
    }
    if (isCancelWanted(current)) return this.#cancel(current, undefined);
    const pending = current.metadata.annotations?.[RESTARTING];
    const isCounted = pending !== undefined && (!pod || pod.metadata.uid === pending);
    const counted = isCounted ? current : await this.#countRestart(current, pod, reason);
    if (!counted) return undefined;
    try {
      if (phaseOf(counted) === 'Accepted') await this.#exposeAgain(counted);
      else await direction.startAgain(counted, contextOf(counted, signal));
    } catch (error) {
      if (isPassing(error)) throw error;
      await this.#ending.fail(
        counted,
        `the data mover died: ${reason}, and could not be started again: ${messageOf(error)}`,
      );
      return undefined;
    }
    await this.#writer.update(counted, ({ metadata: { annotations } }) => {
      if (annotations?.[RESTARTING] === undefined) return false;
      delete annotations[RESTARTING];
      return undefined;
    });
    return { requeueAfterMs: LOOK_MS };
  }

  /** Undefined when it is over: it died too often, or is another agent's by now. */
  async #countRestart(movement: M, pod: Pod | undefined, reason: string): Promise<M | undefined> {
    const { direction, settings, recorder, logger, metrics } = this.#options;
    const restarts = Number(movement.metadata.annotations?.[RESTARTS] ?? 0);
    if (restarts >= settings.restartsMax) {
      await this.#ending.fail(movement, `the data mover died ${restarts + 1} times: ${reason}`);
      return undefined;
    }
    const message = `the data mover died: ${reason}; started again (${restarts + 1} of ${settings.restartsMax})`;
    const counted = await this.#writer.update(movement, (copy) => {
      if (isFinal(copy) || ownerOf(copy) !== settings.node) return false;
      copy.metadata.annotations = {
        ...copy.metadata.annotations,
        [RESTARTS]: String(restarts + 1),
        [RESTARTING]: pod?.metadata.uid ?? 'gone',
      };
      copy.status = { ...copy.status, message };
      return undefined;
    });
    if (!counted) return undefined;
    logger.warn(
      { ...fieldsOf(movement), reason, restarts: restarts + 1 },
      'data mover died; starting it again',
    );
    recorder.record(counted, 'DataMoverRestarted', message, 'Warning');
    metrics.restarted(direction.name);
    return counted;
  }

  /** Without its pod it is made available from the start, as far as that is not done. */
  async #exposeAgain({ metadata: { namespace, name, uid } }: M): Promise<void> {
    this.#exposures.drop(uid);
    await this.#options.client.delete(PODS, { namespace, name }, { gracePeriodSeconds: 0 });
  }

  /** A CR of another agent: left alone, unless that agent has been away for long. */
  async #watchOver(movement: M): Promise<Result | undefined> {
    const { settings, logger, direction } = this.#options;
    const owner = ownerOf(movement);
    if (owner === undefined) return undefined;
    const waitMs = this.#awayInMs(movement, owner);
    if (waitMs > 0) return { requeueAfterMs: Math.min(waitMs, WATCH_OVER_MS) };
    const taken = await this.#writer.exclusive(movement, (copy) => {
      const field = phaseOf(copy) === 'Accepted' ? 'acceptedByNode' : 'node';
      copy.status = { ...copy.status, [field]: settings.node };
    });
    if (!taken) {
      this.#lost();
      return undefined;
    }
    logger.warn(
      { ...fieldsOf(taken), owner },
      `${direction.noun} taken over from an agent that is away`,
    );
    return { requeueAfterMs: 0 };
  }

  /** Milliseconds until the agent of a node counts as away for good, and it is this one's turn to replace it. */
  #awayInMs({ metadata: { uid } }: M, node: string): number {
    const { roster, settings } = this.#options;
    if (roster.isAlive(node)) {
      this.#turns.reset(uid, 'away');
      return WATCH_OVER_MS;
    }
    return settings.takeoverMs + this.#turns.inMs(uid, 'away');
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
      const watched = await this.#watchOver(movement);
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
      return this.#watchOver(movement);
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

/** The API server was away or busy: nothing is wrong with the CR. */
const isPassing = (error: unknown): boolean =>
  isCanceled(error) ||
  isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED', 'KUBE_CONFLICT', 'KUBE_GONE');

function parseResult(message: string): MoverResult {
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return {};
  }
}
