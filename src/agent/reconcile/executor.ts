import { type Clock, type Logger, messageOf, rfc3339Seconds } from '../../base/index.ts';
import {
  type EventRecorder,
  isPassing,
  type KubeClient,
  keyOf,
  type Pod,
  PODS,
  type Result,
} from '../../kube/index.ts';
import { volumeBytesOf } from '../../exposer/index.ts';
import type { BackgroundTasks } from './background-tasks.ts';
import type { DataPaths } from './data-paths.ts';
import type { Direction } from '../directions/direction.ts';
import type { MovementEnd } from './movement-end.ts';
import { contextOf, type Exposures } from './exposures.ts';
import type { AgentMetrics } from '../metrics.ts';
import {
  addFinalizer,
  claimantOf,
  EXPOSING_LABEL,
  fieldsOf,
  hasFinalizer,
  isMoving,
  millisecondsSince,
  type Movement,
  moverNodeOf,
  phaseOf,
  setOwner,
} from '../movement.ts';
import { type MovementWriter, removeLabel } from './movement-writer.ts';
import { fenceMsOf, nameMover } from '../mover/named-mover.ts';
import { type Action, isRunning, LOOK_MS } from '../phases/action.ts';
import type { Restarts } from './restarts.ts';
import { isRightGone, RIGHTS_MS } from '../rights.ts';
import type { Slots } from './slots.ts';
import type { Takeover } from './takeover.ts';
import type { AgentTurns } from './agent-turns.ts';

export interface ExecutorOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly node: string;
  readonly writer: MovementWriter<M>;
  readonly turns: AgentTurns<M>;
  readonly exposures: Exposures<M>;
  readonly dataPaths: DataPaths<M>;
  readonly ending: MovementEnd<M>;
  readonly beside: BackgroundTasks;
  readonly restarts: Restarts<M>;
  readonly takeover: Takeover<M>;
  readonly slots: Slots;
  readonly recorder: EventRecorder;
  readonly metrics: AgentMetrics;
  readonly enqueue: (key: string) => void;
}

/** Outcome of an action: the changed CR, to decide on again, or the time of the next reconcile. */
export type Step<M> = { readonly again: M } | { readonly result: Result | undefined };
type Doable = Exclude<Action, { do: 'read' }>;

const CONSTRAINED_MS = 5000;
/**
 * A larger volume goes first, ahead of volumes that came earlier, in proportion to its size. The
 * small volumes left for the end let all nodes finish at about the same time. No volume waits
 * forever.
 */
const AHEAD_BYTES_PER_MS = 5_000;
const STOPPING_MS = 100;
const done = { result: undefined } as const;
const later = (requeueAfterMs: number): { result: Result } => ({ result: { requeueAfterMs } });

/** `node` is this agent's. The pod may be on another node if that node's agent is away. */
const moverIn = (pod: Pod, node: string): Parameters<typeof nameMover>[1] => ({
  pod: pod.metadata.uid,
  node: pod.spec.nodeName ?? node,
  fenceMs: fenceMsOf(pod),
});

/** Carries out decisions. Each write is based on the version that the decision used. */
export class Executor<M extends Movement> {
  readonly #options: ExecutorOptions<M>;

  constructor(options: ExecutorOptions<M>) {
    this.#options = options;
  }

  async carryOut(movement: M, action: Doable, signal: AbortSignal): Promise<Step<M>> {
    const { direction, ending, exposures, takeover, turns, writer } = this.#options;
    const { uid } = movement.metadata;
    switch (action.do) {
      case 'wait':
        return action.ms === undefined ? done : later(action.ms);
      case 'park':
        exposures.park(movement, turns.dueMs(uid, 'new'));
        return done;
      case 'watchOver':
        exposures.leave(uid);
        if (phaseOf(movement) !== 'Accepted') {
          exposures.drop(uid, {
            isTakenOver: claimantOf(movement) !== this.#options.node,
          });
          this.#options.dataPaths.drop(uid);
          // This agent had taken the CR over, and the CR's own agent is back.
          this.#options.slots.release(uid);
        }
        return { result: await takeover.watchOver(movement) };
      case 'addFinalizer':
        return this.#written(await this.#options.writer.addFinalizer(movement));
      case 'claim':
        return this.#claim(movement);
      case 'expose':
        this.#expose(movement);
        return later(LOOK_MS);
      case 'abortExposure':
        exposures.abort(uid);
        return later(STOPPING_MS);
      case 'forgetExposure': {
        exposures.drop(uid);
        const error = messageOf(action.error);
        this.#options.logger.warn({ ...fieldsOf(movement), error }, 'expose failed; trying again');
        return later(LOOK_MS);
      }
      case 'setPrepared':
        return this.#setPrepared(movement);
      case 'start':
        return this.#start(movement, action.pod, signal);
      case 'takeOver':
        return this.#takeOver(movement, action.pod);
      case 'name':
        return this.#name(movement, action.pod);
      case 'countDeath':
        return this.#countDeath(movement, action.pod, action.reason);
      case 'noteRefusal':
        return this.#noteRefusal(movement, action.pod, action.reason);
      case 'replace':
        return this.#replace(movement, action.pod);
      case 'waitForWriter':
        return this.#waitForWriter(movement, action.message, action.ms);
      case 'restarted':
        await this.#options.restarts.finish(movement);
        turns.reset(uid, 'refused');
        return later(LOOK_MS);
      case 'setCanceling':
        return this.#setCanceling(movement);
      case 'killPod':
        if (direction.isEndAwaited?.(movement) !== true) await this.#deletePod(action.pod);
        return this.#end(movement, () => ending.end(movement, 'Canceled', {}));
      case 'dropPod':
        await this.#deletePod(action.pod);
        return later(0);
      case 'complete':
        return this.#end(movement, () => ending.complete(movement, action.result, signal));
      case 'completeAs':
        return this.#end(movement, () => ending.completeAs(movement, action.done));
      case 'cancel':
        return this.#end(movement, () => ending.end(movement, 'Canceled', {}));
      case 'fail':
        if (writer.isRefusing) return this.#written(await writer.touch(movement));
        return this.#end(movement, () => ending.fail(movement, action.message));
      case 'failDiagnosed':
        // While the API server refuses writes, the CR could not progress. Do not report a timeout
        // in the first accepted write.
        if (writer.isRefusing) return this.#written(await writer.touch(movement));
        return this.#end(movement, async () =>
          ending.fail(movement, action.message + (await direction.diagnose(movement))),
        );
    }
  }

  /** Handing over or deleting a volume may take minutes. */
  #end({ metadata }: M, task: () => Promise<unknown>): Step<M> {
    const result = this.#options.beside.start(keyOf(metadata), async () => {
      await task();
      return undefined;
    });
    return { result };
  }

  /** Undefined means that another agent wrote first. The watch will deliver its version. */
  #written(movement: M | undefined): Step<M> {
    if (movement) return { again: movement };
    this.#options.metrics.conflict(this.#options.direction.name);
    return done;
  }

  async #claim(movement: M): Promise<Step<M>> {
    const { clock, node, direction, recorder, logger, exposures, metrics } = this.#options;
    if (!exposures.tryAcquire(movement)) return done;
    let claimed: M | undefined;
    try {
      claimed = await this.#options.writer.exclusive(movement, (copy) => {
        if (!hasFinalizer(copy)) addFinalizer(copy);
        copy.metadata.labels = { ...copy.metadata.labels, [EXPOSING_LABEL]: 'true' };
        copy.status = {
          ...copy.status,
          phase: 'Accepted',
          acceptedTimestamp: rfc3339Seconds(clock.nowNs()),
        };
        setOwner(copy, node);
      });
    } finally {
      if (!claimed) exposures.release(movement.metadata.uid);
    }
    if (!claimed) return this.#written(undefined);
    metrics.accepted(direction.name, millisecondsSince(clock, claimed.metadata.creationTimestamp));
    logger.info(fieldsOf(claimed), `${direction.noun} accepted`);
    exposures.claimed(claimed);
    recorder.record(claimed, 'Accepted', `node ${node} is making the volume available`);
    this.#expose(claimed);
    return { again: claimed };
  }

  #expose(movement: M): void {
    const { exposures, direction } = this.#options;
    if (!exposures.tryAcquire(movement)) return;
    exposures.start(movement, (context) => direction.expose(movement, context));
  }

  /** Called by the agent on the pod's node, which owns the CR from now on. */
  async #setPrepared(movement: M): Promise<Step<M>> {
    const { node, direction, logger, metrics, clock } = this.#options;
    const prepared = await this.#options.writer.exclusive(movement, (copy) => {
      copy.status = { ...copy.status, phase: 'Prepared' };
      setOwner(copy, node);
    });
    if (!prepared) return this.#written(undefined);
    this.#options.exposures.drop(movement.metadata.uid);
    metrics.prepared(direction.name, millisecondsSince(clock, movement.status?.acceptedTimestamp));
    logger.info(fieldsOf(prepared), `${direction.noun} prepared`);
    return { again: prepared };
  }

  #start(movement: M, pod: Pod, signal: AbortSignal): Step<M> {
    const { slots, turns, beside } = this.#options;
    const { uid } = movement.metadata;
    const preparedMs = turns.sinceMs(uid, 'prepared');
    const key = keyOf(movement.metadata);
    const wake = (): void => {
      this.#options.enqueue(key);
    };
    const order = performance.now() - preparedMs - volumeBytesOf(pod) / AHEAD_BYTES_PER_MS;
    if (!slots.tryAcquire(uid, wake, order)) return later(CONSTRAINED_MS);
    const result = beside.start(key, async () => {
      await this.#startPrepared(movement, pod, preparedMs, signal);
      return undefined;
    });
    if (result) slots.release(uid);
    return { result };
  }

  async #startPrepared(
    movement: M,
    pod: Pod,
    preparedMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const { node, direction, slots, clock, recorder, logger, metrics, turns } = this.#options;
    const { uid } = movement.metadata;
    try {
      await direction.waitUsable(movement, contextOf(movement, signal));
    } catch (error) {
      slots.release(uid);
      const mayBeGiven = isRightGone(error) && turns.sinceMs(uid, 'refused') < RIGHTS_MS;
      if (isPassing(error) || mayBeGiven) throw error;
      const text = `exposed volume is not ready: ${messageOf(error)}`;
      await this.#options.ending.fail(movement, text);
      return;
    }
    const started = await this.#options.writer.exclusive(movement, (copy) => {
      const os = pod.spec.os?.name === 'windows' ? 'windows' : 'linux';
      copy.status = {
        ...copy.status,
        phase: 'InProgress',
        startTimestamp: rfc3339Seconds(clock.nowNs()),
        ...(direction.name === 'upload' && { nodeOS: os }),
      };
      nameMover(copy, moverIn(pod, node), clock);
      removeLabel(copy);
    });
    if (!started) {
      // An earlier write may have succeeded although its answer was lost. Its mover runs then.
      const current = await this.#options.writer.latest(movement);
      if (!current || !isMoving(current) || moverNodeOf(current) !== node) {
        slots.release(uid);
      }
      this.#written(undefined);
      return;
    }
    turns.reset(uid, 'refused');
    const sinceCreatedMs = millisecondsSince(clock, movement.metadata.creationTimestamp);
    metrics.started(direction.name, sinceCreatedMs, preparedMs);
    logger.info(fieldsOf(started), `${direction.noun} started`);
    recorder.record(started, 'Started', `node ${node} is moving the data`);
  }

  async #setCanceling(movement: M): Promise<Step<M>> {
    const { direction, logger } = this.#options;
    const canceling = await this.#options.writer.exclusive(movement, (copy) => {
      copy.status = { ...copy.status, phase: 'Canceling' };
    });
    if (canceling) logger.info(fieldsOf(canceling), `${direction.noun} is being canceled`);
    return this.#written(canceling);
  }

  /** Counts a dead mover, unless the CR has changed and the watch is late. */
  async #countDeath(movement: M, pod: Pod | undefined, reason: string): Promise<Step<M>> {
    const changed = await this.#changed(movement);
    if (changed) return changed;
    const counted = await this.#options.restarts.count(movement, pod, reason);
    return counted ? { again: counted } : done;
  }

  async #noteRefusal(movement: M, pod: Pod, reason: string): Promise<Step<M>> {
    const changed = await this.#changed(movement);
    if (changed) return changed;
    return this.#written(await this.#options.restarts.refuse(movement, pod, reason));
  }

  async #replace(movement: M, pod: Pod | undefined): Promise<Step<M>> {
    const changed = await this.#changed(movement);
    if (changed) return changed;
    await this.#options.restarts.replace(movement, pod);
    return later(LOOK_MS);
  }

  /** The current version may need another decision, such as a cancel or the last step. */
  async #changed(movement: M): Promise<Step<M> | undefined> {
    const current = await this.#options.writer.latest(movement);
    if (!current) return done;
    const isAsSeen = current.metadata.resourceVersion === movement.metadata.resourceVersion;
    return isAsSeen ? undefined : { again: current };
  }

  async #takeOver(movement: M, pod: Pod): Promise<Step<M>> {
    const { writer, node, takeover } = this.#options;
    if (!(await this.#isThere(pod))) return { result: await takeover.watchOver(movement) };
    const taken = await writer.exclusive(movement, (copy) => {
      setOwner(copy, node);
    });
    return this.#written(taken);
  }

  /** Reads the API server, because the watch may show a replaced pod for minutes. */
  async #isThere({ metadata }: Pod): Promise<boolean> {
    const now = await this.#options.client.find(PODS, metadata);
    return now?.metadata.uid === metadata.uid && !now.metadata.deletionTimestamp && isRunning(now);
  }

  async #name(movement: M, pod: Pod): Promise<Step<M>> {
    const { writer, clock, node } = this.#options;
    if (!(await this.#isThere(pod))) return later(LOOK_MS);
    const named = await writer.exclusive(movement, (copy) => {
      nameMover(copy, moverIn(pod, node), clock);
    });
    return this.#written(named);
  }

  /** Reported once, in the status and as an Event. */
  async #waitForWriter(movement: M, message: string, ms: number): Promise<Step<M>> {
    const { writer, recorder, logger } = this.#options;
    if (movement.status?.message !== message) {
      const told = await writer.exclusive(movement, (copy) => {
        copy.status = { ...copy.status, message };
      });
      if (!told) return this.#written(undefined);
      logger.warn(fieldsOf(movement), message);
      recorder.record(movement, 'WaitsForDataMover', message, 'Warning');
    }
    return later(ms);
  }

  async #deletePod({ metadata }: Pod): Promise<void> {
    const { uid } = metadata;
    await this.#options.client.delete(PODS, metadata, { uid, gracePeriodSeconds: 0 });
  }
}
