import { type Clock, isCode, type Logger, messageOf } from '../base/index.ts';
import { deathOf, type ExposeContext, terminationOf, unrecoverable } from '../exposer/index.ts';
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
import { DataPath, type MoverProgress } from './data-path.ts';
import type { AgentMetrics } from './metrics.ts';
import {
  type Direction,
  EXPOSING_LABEL,
  FINALIZER,
  isCancelWanted,
  isFinal,
  millisecondsSince,
  type Movement,
  type MoverResult,
  now,
  operationTimeoutMs,
  type Outcome,
  outcomeOf,
  ownerOf,
  phaseOf,
  RESTARTS,
  setOutcome,
} from './movement.ts';
import { MovementWriter, removeLabel } from './movement-writer.ts';
import { copyPodLog } from './pod-log.ts';
import type { Roster } from './roster.ts';
import type { Slots } from './slots.ts';

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

interface Exposure {
  readonly abort: AbortController;
  state: 'running' | 'done' | { error: unknown };
}

/** Looks at what an agent may have missed; everything else comes by watch. */
const LOOK_MS = 5000;
const WATCH_OVER_MS = 30_000;
const CONSTRAINED_MS = 5000;
const WAITING_MS = 1000;
/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const PROGRESS_MS = 1000;
const CANCELED_SUFFIX = 'data path is canceled';
const MESSAGE_MAX = 4096;

/**
 * Drives DataUploads or DataDownloads through their phases. Every step starts from what the API server has now, so
 * that agents and movers may die at any point: what is kept in memory is only what can be made again.
 */
export class MovementReconciler<M extends Movement> {
  readonly #options: ReconcilerOptions<M>;
  readonly #writer: MovementWriter<M>;
  readonly #exposures = new Map<string, Exposure>();
  readonly #dataPaths = new Map<string, DataPath>();
  /** When this agent first saw something about a CR: by UID and what it is. */
  readonly #since = new Map<string, number>();
  readonly #clean = new Set<string>();
  readonly #progress = new Map<string, { latest: MoverProgress; writing: boolean }>();

  constructor(options: ReconcilerOptions<M>) {
    this.#options = options;
    this.#writer = new MovementWriter(options.client, options.cache, options.clock);
  }

  /** CRs whose data path this agent watches. */
  get activeDataPaths(): number {
    return this.#dataPaths.size;
  }

  /** Leaves everything as it is: movers go on by themselves, and the agent that comes back looks after them again. */
  stop(): void {
    for (const path of this.#dataPaths.values()) path.close();
    for (const { abort } of this.#exposures.values()) abort.abort();
  }

  async reconcile(key: string, signal: AbortSignal): Promise<Result | undefined> {
    const movement = this.#writer.current(refOf(key));
    if (!movement) return undefined;
    const { settings } = this.#options;
    if (!settings.dataMovers.has(movement.spec.datamover ?? '')) return undefined;
    if (isFinal(movement)) return this.#finalize(movement);
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
    const { clock, settings, direction, exposures, recorder, logger } = this.#options;
    const waitMs = this.#turnIn(movement, 'new');
    if (waitMs > 0) return { requeueAfterMs: waitMs };
    const key = keyOf(movement.metadata);
    let current: M | undefined = movement;
    if (
      this.#options.roster.turnMs(movement.metadata.uid) > 0 &&
      !(await this.#isLatest(movement))
    ) {
      // Another agent has it, and the watch is behind.
      return undefined;
    }
    if (!hasFinalizer(movement)) {
      current = await this.#writer.addFinalizer(movement);
      if (!current) {
        this.#lost();
        return undefined;
      }
    }
    if (isCancelWanted(current)) {
      await this.#end(current, 'Canceled', {});
      return undefined;
    }
    const problem = direction.problemOf(current);
    if (problem !== undefined) {
      await this.#fail(current, problem);
      return undefined;
    }
    const { prepareQueueLength } = settings;
    if (prepareQueueLength > 0 && this.#options.exposingCount() >= prepareQueueLength) {
      return { requeueAfterMs: CONSTRAINED_MS };
    }
    const { uid } = current.metadata;
    if ((await direction.waitsFor(current)) !== undefined) return { requeueAfterMs: WAITING_MS };
    const wake = (): void => {
      this.#options.enqueue(key);
    };
    if (!exposures.tryAcquire(uid, wake)) return { requeueAfterMs: CONSTRAINED_MS };
    let claimed: M | undefined;
    try {
      claimed = await this.#writer.exclusive(current, (copy) => {
        copy.metadata.labels = { ...copy.metadata.labels, [EXPOSING_LABEL]: 'true' };
        copy.status = {
          ...copy.status,
          phase: 'Accepted',
          acceptedByNode: settings.node,
          acceptedTimestamp: now(clock),
        };
      });
    } finally {
      if (!claimed) exposures.release(uid);
    }
    if (!claimed) {
      this.#lost();
      return undefined;
    }
    this.#options.metrics.accepted(
      direction.name,
      millisecondsSince(clock, claimed.metadata.creationTimestamp),
    );
    logger.info(this.#fields(claimed), `${direction.noun} accepted`);
    recorder.record(claimed, 'Accepted', `node ${settings.node} makes the volume available`);
    this.#expose(claimed);
    return this.#prepare(claimed, signal);
  }

  /** Whether nobody wrote since: asked by those who are not first, whose watch may be slower than the others' writes. */
  async #isLatest({ metadata }: M): Promise<boolean> {
    const { client, direction } = this.#options;
    const found = await client.find(direction.resource, metadata);
    return found?.metadata.resourceVersion === metadata.resourceVersion;
  }

  /** Another agent wrote first: what it wrote comes by the watch. */
  #lost(): void {
    this.#options.metrics.conflict(this.#options.direction.name);
  }

  /** Runs beside the reconciler, since it waits for storage; a place in `exposures` is held. */
  #expose(movement: M): void {
    const { direction, exposures, enqueue } = this.#options;
    const { uid } = movement.metadata;
    const abort = new AbortController();
    const exposure: Exposure = { abort, state: 'running' };
    this.#exposures.set(uid, exposure);
    const context = this.#context(movement, abort.signal);
    void direction
      .expose(movement, context)
      .then(
        () => (exposure.state = 'done'),
        (error: unknown) => (exposure.state = { error }),
      )
      .then(() => {
        exposures.release(uid);
        enqueue(keyOf(movement.metadata));
      });
  }

  async #prepare(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, client, logger } = this.#options;
    const local = this.#localPod(movement);
    if (local?.status?.phase === 'Running' && !isCancelWanted(movement)) {
      return this.#setPrepared(movement, signal);
    }
    if (movement.status?.acceptedByNode !== settings.node) return this.#watchOver(movement);
    const { uid } = movement.metadata;
    const exposure = this.#exposures.get(uid);
    if (isCancelWanted(movement)) {
      exposure?.abort.abort();
      if (exposure?.state === 'running') return { requeueAfterMs: 100 };
      await this.#end(movement, 'Canceled', {});
      return undefined;
    }
    if (exposure?.state === 'running') return { requeueAfterMs: LOOK_MS };
    if (typeof exposure?.state === 'object') {
      const { error } = exposure.state;
      this.#exposures.delete(uid);
      if (isPassing(error)) {
        logger.warn(
          { ...this.#fields(movement), error: messageOf(error) },
          'expose failed; trying again',
        );
        return { requeueAfterMs: LOOK_MS };
      }
      await this.#fail(movement, messageOf(error));
      return undefined;
    }
    const { namespace, name } = movement.metadata;
    const pod = await client.find(PODS, { namespace, name }, { signal });
    if (!pod) {
      // Made by an agent that died on the way, or deleted since: each step of it finds what is there.
      const key = keyOf(movement.metadata);
      const wake = (): void => {
        this.#options.enqueue(key);
      };
      if (!this.#options.exposures.tryAcquire(uid, wake)) return { requeueAfterMs: LOOK_MS };
      const since = millisecondsSince(this.#options.clock, movement.status.acceptedTimestamp);
      if (exposure?.state === 'done' && since > settings.prepareTimeoutMs) {
        this.#options.exposures.release(uid);
        await this.#fail(movement, `timeout on preparing ${direction.noun}: its pod was deleted`);
        return undefined;
      }
      this.#expose(movement);
      return { requeueAfterMs: LOOK_MS };
    }
    const broken = unrecoverable(pod);
    if (broken !== undefined) {
      await this.#fail(movement, broken);
      return undefined;
    }
    const waitedMs = millisecondsSince(this.#options.clock, pod.metadata.creationTimestamp);
    if (waitedMs >= settings.prepareTimeoutMs) {
      const diagnosis = await direction.diagnose(movement);
      await this.#fail(movement, `timeout on preparing ${direction.noun}: ${diagnosis}`);
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
    this.#dropExposure(movement.metadata.uid);
    metrics.prepared(direction.name, millisecondsSince(clock, movement.status?.acceptedTimestamp));
    logger.info(this.#fields(prepared), `${direction.noun} prepared`);
    return this.#start(prepared, signal);
  }

  async #start(movement: M, signal: AbortSignal): Promise<Result | undefined> {
    const { settings, direction, slots, clock, recorder, logger, metrics } = this.#options;
    if (movement.status?.node !== settings.node) {
      this.#dropExposure(movement.metadata.uid);
      return this.#watchOver(movement);
    }
    if (isCancelWanted(movement)) {
      await this.#end(movement, 'Canceled', {});
      return undefined;
    }
    const { uid } = movement.metadata;
    const pod = await this.#pod(movement, signal);
    if (!pod || isOver(pod)) {
      return this.#startAgain(movement, pod ? deathOf(pod) : 'its pod is gone', signal);
    }
    const key = keyOf(movement.metadata);
    const wake = (): void => {
      this.#options.enqueue(key);
    };
    if (!slots.tryAcquire(uid, wake)) return { requeueAfterMs: CONSTRAINED_MS };
    try {
      await direction.waitUsable(movement, this.#context(movement, signal));
    } catch (error) {
      slots.release(uid);
      if (isPassing(error)) throw error;
      await this.#fail(movement, `exposed volume is not ready: ${messageOf(error)}`);
      return undefined;
    }
    const started = await this.#writer.exclusive(movement, (copy) => {
      const os = pod.spec.os?.name === 'windows' ? 'windows' : 'linux';
      copy.status = {
        ...copy.status,
        phase: 'InProgress',
        startTimestamp: now(clock),
        ...(direction.name === 'upload' && { nodeOS: os }),
      };
      removeLabel(copy);
    });
    if (!started) {
      slots.release(uid);
      this.#lost();
      return undefined;
    }
    metrics.started(direction.name, millisecondsSince(clock, movement.metadata.creationTimestamp));
    logger.info(this.#fields(started), `${direction.noun} started`);
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
      this.#dropDataPath(uid);
      return this.#watchOver(movement);
    }
    slots.acquireAnyway(uid);
    if (direction.isCompleting(movement)) {
      await this.#complete(movement, {}, signal);
      return undefined;
    }
    const pod = await this.#pod(movement, signal);
    const path = this.#dataPath(movement);
    path.podIsRunning(pod?.status?.phase === 'Running');
    if (pod && isOver(pod)) return this.#ended(movement, pod, signal);
    if (isCancelWanted(movement)) return this.#cancel(movement, pod);
    if (!pod) return this.#startAgain(movement, 'its pod is gone', signal);
    if (path.stalledMs > settings.stallTimeoutMs) {
      const minutes = Math.round(settings.stallTimeoutMs / 60_000);
      await this.#fail(
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
        await this.#fail(movement, `the data mover could not be started again: ${reason}`);
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
      this.#options.logger.info(this.#fields(current), `${direction.noun} is being canceled`);
    }
    const waitedMs = this.#sinceMs(current, 'canceling');
    if (!pod || waitedMs >= CANCEL_GRACE_MS) {
      if (pod) await client.delete(PODS, pod.metadata, { gracePeriodSeconds: 0 });
      await this.#end(current, 'Canceled', {});
      return undefined;
    }
    return { requeueAfterMs: Math.min(LOOK_MS, CANCEL_GRACE_MS - waitedMs) };
  }

  /** The pod has ended: its termination message is the outcome, and a pod without one died. */
  async #ended(movement: M, pod: Pod, signal: AbortSignal): Promise<Result | undefined> {
    const message = terminationOf(pod) ?? '';
    await copyPodLog(this.#options, pod, movement.metadata.uid);
    if (pod.status?.phase === 'Succeeded') {
      await this.#complete(movement, parseResult(message), signal);
      return undefined;
    }
    if (message.endsWith(CANCELED_SUFFIX)) {
      // Stopped by a signal, not by us: a node that shuts down, an eviction.
      if (!isCancelWanted(movement)) return this.#startAgain(movement, deathOf(pod), signal);
      await this.#end(movement, 'Canceled', {});
      return undefined;
    }
    if (isCancelWanted(movement)) {
      await this.#end(movement, 'Canceled', {});
      return undefined;
    }
    if (message === '') return this.#startAgain(movement, deathOf(pod), signal);
    const { name } = this.#options.direction;
    await this.#fail(
      movement,
      `data path ${name === 'upload' ? 'backup' : 'restore'} failed: ${message}`,
    );
    return undefined;
  }

  async #complete(movement: M, result: MoverResult, signal: AbortSignal): Promise<void> {
    const { direction, recorder, metrics, clock, logger } = this.#options;
    let fields: object;
    try {
      fields = await direction.complete(movement, result, this.#context(movement, signal));
    } catch (error) {
      if (isPassing(error)) throw error;
      await this.#fail(movement, messageOf(error));
      return;
    }
    const before = this.#writer.current(movement.metadata)?.status?.progress;
    const total = Math.max(result.totalBytes ?? before?.totalBytes ?? 0, before?.bytesDone ?? 0);
    const done = await this.#end(movement, 'Completed', {
      message: '',
      ...fields,
      progress: total > 0 ? { totalBytes: total, bytesDone: total } : {},
    });
    if (!done) return;
    const ms = millisecondsSince(clock, done.status?.startTimestamp);
    metrics.moved(direction.name, total, ms);
    logger.info(
      { ...this.#fields(done), bytes: total, seconds: ms / 1000 },
      `${direction.noun} completed`,
    );
    recorder.record(done, 'Completed', `${total} bytes moved in ${Math.round(ms / 1000)} s`);
  }

  /** Starts a mover that died again, from what it had stored; the CR stays as it is, with a message. */
  async #startAgain(movement: M, reason: string, signal: AbortSignal): Promise<Result | undefined> {
    const { direction, settings, recorder, logger, metrics } = this.#options;
    if (isCancelWanted(movement)) return this.#cancel(movement, undefined);
    const restarts = Number(movement.metadata.annotations?.[RESTARTS] ?? 0);
    if (restarts >= settings.restartsMax) {
      await this.#fail(movement, `the data mover died ${restarts + 1} times: ${reason}`);
      return undefined;
    }
    const message = `the data mover died: ${reason}; started again (${restarts + 1} of ${settings.restartsMax})`;
    const counted = await this.#writer.update(movement, (copy) => {
      if (isFinal(copy) || copy.status?.node !== settings.node) return false;
      copy.metadata.annotations = {
        ...copy.metadata.annotations,
        [RESTARTS]: String(restarts + 1),
      };
      copy.status = { ...copy.status, message };
      return undefined;
    });
    if (!counted) return undefined;
    logger.warn(
      { ...this.#fields(movement), reason, restarts: restarts + 1 },
      'data mover died; starting it again',
    );
    recorder.record(counted, 'DataMoverRestarted', message, 'Warning');
    metrics.restarted(direction.name);
    try {
      await direction.startAgain(counted, this.#context(counted, signal));
    } catch (error) {
      if (isPassing(error)) throw error;
      await this.#fail(
        counted,
        `the data mover died: ${reason}, and could not be started again: ${messageOf(error)}`,
      );
      return undefined;
    }
    return { requeueAfterMs: LOOK_MS };
  }

  /** A CR of another agent: left alone, unless that agent has been away for long. */
  async #watchOver(movement: M): Promise<Result | undefined> {
    const { roster, settings, logger, direction } = this.#options;
    const owner = ownerOf(movement);
    if (owner === undefined) return undefined;
    if (roster.isAlive(owner)) {
      this.#since.delete(`${movement.metadata.uid} away`);
      return { requeueAfterMs: WATCH_OVER_MS };
    }
    const awayMs = this.#sinceMs(movement, 'away');
    const waitMs = settings.takeoverMs + roster.turnMs(movement.metadata.uid) - awayMs;
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
      { ...this.#fields(taken), owner },
      `${direction.noun} taken over from an agent that is away`,
    );
    return { requeueAfterMs: 0 };
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
      const waitMs = owner === undefined ? this.#turnIn(movement, 'deleted') : 0;
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

  async #fail(movement: M, message: string): Promise<void> {
    const text = message.length > MESSAGE_MAX ? `${message.slice(0, MESSAGE_MAX - 3)}...` : message;
    const failed = await this.#end(movement, 'Failed', { message: text });
    if (!failed) return;
    this.#options.logger.error(
      { ...this.#fields(failed), error: text },
      `${this.#options.direction.noun} failed`,
    );
    this.#options.recorder.record(failed, 'Failed', text, 'Warning');
  }

  /** Clean-up first, so that nothing of ours is left once the phase is final; the finalizer stays until it is certain. */
  async #end(
    movement: M,
    phase: 'Completed' | 'Failed' | 'Canceled',
    status: object,
  ): Promise<M | undefined> {
    const { direction, metrics, logger } = this.#options;
    const { uid } = movement.metadata;
    this.#exposures.get(uid)?.abort.abort();
    this.#dropDataPath(uid);
    let outcome: Outcome = { phase, status };
    // Also brings the notes that exposers keep on the CR, which the watch may not have told of yet.
    const noted = await this.#writer.update(movement, (copy) => {
      if (isFinal(copy)) return false;
      // Whoever said first how it ended is right: what was moved is moved.
      outcome = outcomeOf(copy) ?? outcome;
      setOutcome(copy, outcome);
      return undefined;
    });
    if (noted && (await direction.cleanUp(noted))) this.#clean.add(uid);
    const ended = noted && (await this.#writer.finish(noted, outcome));
    this.#dropExposure(uid);
    this.#options.slots.release(uid);
    if (!ended) return undefined;
    metrics.ended(direction.name, outcome.phase);
    if (outcome.phase === 'Canceled') {
      logger.info(this.#fields(ended), `${direction.noun} canceled`);
    }
    await this.#finalize(ended);
    return ended;
  }

  /** An agent died while it cleaned up: the end is known, and only that is left to do. */
  async #goOnEnding(movement: M, { phase, status }: Outcome): Promise<Result | undefined> {
    const owner = ownerOf(movement);
    if (owner !== undefined && owner !== this.#options.settings.node)
      return this.#watchOver(movement);
    await this.#end(movement, phase, status);
    return undefined;
  }

  /** Final: what may be left of it goes, then the finalizer. */
  async #finalize(movement: M): Promise<Result | undefined> {
    const { settings, roster, direction } = this.#options;
    const { uid } = movement.metadata;
    this.#dropDataPath(uid);
    this.#options.slots.release(uid);
    this.#dropExposure(uid);
    if (!hasFinalizer(movement)) {
      this.#forget(uid);
      return undefined;
    }
    const owner = ownerOf(movement);
    if (owner !== settings.node) {
      const isOrphan = owner === undefined || !roster.isAlive(owner);
      const waitMs = isOrphan ? this.#turnIn(movement, 'final') : WATCH_OVER_MS;
      if (waitMs > 0) return { requeueAfterMs: waitMs };
    }
    if (!this.#clean.has(uid)) {
      if (!(await direction.cleanUp(movement))) return { requeueAfterMs: WATCH_OVER_MS };
      this.#clean.add(uid);
    }
    await this.#writer.removeFinalizer(movement);
    this.#forget(uid);
    return undefined;
  }

  #forget(uid: string): void {
    this.#clean.delete(uid);
    this.#progress.delete(uid);
    for (const what of ['new', 'away', 'deleted', 'final', 'canceling']) {
      this.#since.delete(`${uid} ${what}`);
    }
  }

  #dropExposure(uid: string): void {
    this.#exposures.get(uid)?.abort.abort();
    this.#exposures.delete(uid);
    this.#options.exposures.release(uid);
  }

  #dropDataPath(uid: string): void {
    this.#dataPaths.get(uid)?.close();
    this.#dataPaths.delete(uid);
  }

  #dataPath(movement: M): DataPath {
    const { uid } = movement.metadata;
    let path = this.#dataPaths.get(uid);
    if (!path) {
      const { client, logger, settings } = this.#options;
      path = new DataPath(movement, {
        client,
        logger,
        namespace: settings.namespace,
        onProgress: (progress) => {
          this.#noteProgress(movement, progress);
        },
      });
      this.#dataPaths.set(uid, path);
    }
    return path;
  }

  /** Written at a bounded rate, the latest only, never going back. */
  #noteProgress(movement: M, progress: MoverProgress): void {
    const { uid } = movement.metadata;
    const known = this.#progress.get(uid);
    if (known) known.latest = progress;
    else this.#progress.set(uid, { latest: progress, writing: false });
    if (known?.writing === true) return;
    void this.#writeProgress(movement);
  }

  async #writeProgress(movement: M): Promise<void> {
    const entry = this.#progress.get(movement.metadata.uid);
    if (!entry) return;
    entry.writing = true;
    const { latest } = entry;
    try {
      await this.#writer.update(movement, (copy) => {
        if (isFinal(copy)) return false;
        const before = copy.status?.progress ?? {};
        const bytesDone = Math.max(before.bytesDone ?? 0, latest.bytesDone);
        const totalBytes = Math.max(latest.totalBytes, bytesDone);
        if (before.bytesDone === bytesDone && before.totalBytes === totalBytes) return false;
        copy.status = { ...copy.status, progress: { ...before, bytesDone, totalBytes } };
        return undefined;
      });
    } catch (error) {
      this.#options.logger.warn(
        { ...this.#fields(movement), error: messageOf(error) },
        'progress could not be written',
      );
    }
    setTimeout(() => {
      entry.writing = false;
      if (entry.latest !== latest && this.#dataPaths.has(movement.metadata.uid)) {
        void this.#writeProgress(movement);
      }
    }, PROGRESS_MS).unref();
  }

  /** The hosting pod as this node sees it, else as the API has it: it may be on another node. */
  async #pod(movement: M, signal: AbortSignal): Promise<Pod | undefined> {
    const local = this.#localPod(movement);
    if (local) return local;
    const { namespace, name } = movement.metadata;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    return pod && isOf(pod, movement) ? pod : undefined;
  }

  #localPod(movement: M): Pod | undefined {
    const pod = this.#options.pods.get(movement.metadata);
    if (!pod || pod.metadata.deletionTimestamp !== undefined) return undefined;
    return isOf(pod, movement) ? pod : undefined;
  }

  #context(movement: M, signal: AbortSignal): ExposeContext {
    return { operationTimeoutMs: operationTimeoutMs(movement), signal };
  }

  /** Milliseconds until it is this agent's turn at something that any agent may do; at most 0 when it is. */
  #turnIn(movement: M, what: string): number {
    const { uid } = movement.metadata;
    return this.#options.roster.turnMs(uid) - this.#sinceMs(movement, what);
  }

  #sinceMs({ metadata: { uid } }: M, what: string): number {
    const key = `${uid} ${what}`;
    const since = this.#since.get(key);
    if (since !== undefined) return performance.now() - since;
    this.#since.set(key, performance.now());
    return 0;
  }

  #fields({ metadata: { name, uid } }: M): object {
    return {
      [`data${this.#options.direction.name === 'upload' ? 'Upload' : 'Download'}`]: name,
      uid,
    };
  }
}

const hasFinalizer = ({ metadata }: Movement): boolean =>
  metadata.finalizers?.includes(FINALIZER) === true;

const isOver = ({ status }: Pod): boolean =>
  status?.phase === 'Succeeded' || status?.phase === 'Failed';

const isOf = ({ metadata }: Pod, movement: Movement): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === movement.metadata.uid) === true;

/** The API server was away or busy: nothing is wrong with the CR. */
const isPassing = (error: unknown): boolean =>
  isCode(error, 'KUBE_UNAVAILABLE', 'KUBE_THROTTLED', 'KUBE_CONFLICT', 'KUBE_GONE', 'CANCELED') ||
  (error instanceof Error && error.name === 'AbortError');

function parseResult(message: string): MoverResult {
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return {};
  }
}
