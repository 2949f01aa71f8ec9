import type { Clock, Logger } from '../../base/index.ts';
import { hasEnded } from '../../exposer/index.ts';
import {
  type Cache,
  type EventRecorder,
  type KubeClient,
  keyOf,
  type Pod,
  refOf,
  type Result,
} from '../../kube/index.ts';
import type { Backlog } from './node-backlog.ts';
import { BackgroundTasks } from './background-tasks.ts';
import { DataPaths } from './data-paths.ts';
import { Decider } from './decider.ts';
import type { Direction } from '../directions/direction.ts';
import { MovementEnd } from './movement-end.ts';
import { Executor } from './executor.ts';
import { Exposures } from './exposures.ts';
import type { AgentMetrics } from '../metrics.ts';
import {
  hasFinalizer,
  isCancelWanted,
  isFinal,
  isMoving,
  isPodOf,
  isPodVolume,
  isServedBy,
  type Movement,
  moverNodeOf,
  ownerOf,
  phaseOf,
  podNodeOf,
} from '../movement.ts';
import type { MoverLogs } from '../mover/mover-logs.ts';
import { MovementWriter } from './movement-writer.ts';
import { type Outcome, outcomeOf } from './recorded-outcome.ts';
import { isRunning } from '../phases/action.ts';
import { Restarts } from './restarts.ts';
import type { Roster } from './roster.ts';
import type { Slots } from './slots.ts';
import { RestoreTargets } from './restore-targets.ts';
import { Takeover } from './takeover.ts';
import { Memory } from './tracked-movements.ts';
import { AgentTurns } from './agent-turns.ts';

export interface ReconcilerSettings {
  readonly node: string;
  readonly namespace: string;
  /** Values of `spec.datamover` that are served. */
  readonly dataMovers: ReadonlySet<string>;
  readonly prepareTimeoutMs: number;
  /** How often a data mover that died is restarted. */
  readonly restartsMax: number;
  readonly stallTimeoutMs: number;
  /** If an agent is away for longer, other agents take its CRs over. */
  readonly takeoverMs: number;
  /** A restore's mover stops after this long without the API server; below {@link takeoverMs}. */
  readonly fenceMs: number;
  /** CRs being exposed in the whole cluster at once; 0 for no limit. */
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
  /** Volumes that this agent may expose at once in this direction. */
  readonly exposures: Slots;
  /** Places for hosting pods with a fixed node; undefined if the scheduler places them. */
  readonly hosted?: Slots | undefined;
  /** CRs of all kinds that are being exposed in the cluster. */
  readonly exposingCount: () => number;
  /** Work waiting on all nodes. */
  readonly backlog: Pick<Backlog, 'isFull'>;
  readonly recorder: EventRecorder;
  readonly metrics: AgentMetrics;
  readonly settings: ReconcilerSettings;
  /** Receives the log of each data mover that ended. Optional. */
  readonly writeLog?: ((text: string) => void) | undefined;
  /** Stores these logs. Optional. */
  readonly moverLogs?: Pick<MoverLogs, 'keep'> | undefined;
  /** Requests another reconcile of the key soon. */
  readonly enqueue: (key: string) => void;
}

const UNDER_WAY: Result = { isUnderWay: true };

/**
 * Drives the CRs of one kind through their phases: decides the next step and carries it out. Every
 * step starts from the API server's state, so agents and movers may die at any point.
 */
export class MovementReconciler<M extends Movement> {
  readonly #options: ReconcilerOptions<M>;
  readonly #memory: Memory<M>;
  readonly #writer: MovementWriter<M>;
  readonly #turns: AgentTurns<M>;
  readonly #targets: RestoreTargets<M>;
  readonly #exposures: Exposures<M>;
  readonly #dataPaths: DataPaths<M>;
  readonly #ending: MovementEnd<M>;
  readonly #takeover: Takeover<M>;
  readonly #executor: Executor<M>;
  readonly #beside: BackgroundTasks;
  readonly #decider: Decider<M>;

  constructor(options: ReconcilerOptions<M>) {
    this.#options = options;
    const { client, clock, cache, settings, slots, enqueue } = options;
    const { namespace } = settings;
    const { hosted } = options;
    const memory = new Memory<M>([slots, options.exposures, ...(hosted ? [hosted] : [])]);
    this.#memory = memory;
    this.#writer = new MovementWriter(client, cache, clock, memory);
    this.#turns = new AgentTurns(options.roster, memory, cache);
    this.#targets = new RestoreTargets(this.#turns, memory);
    this.#beside = new BackgroundTasks({ enqueue });
    this.#exposures = new Exposures({ slots: options.exposures, hosted, memory, enqueue });
    this.#dataPaths = new DataPaths({ ...options, namespace, writer: this.#writer, memory });
    const parts = {
      ...options,
      ...settings,
      memory,
      writer: this.#writer,
      turns: this.#turns,
      exposures: this.#exposures,
      dataPaths: this.#dataPaths,
      beside: this.#beside,
      heardMs: () => this.#heardMs,
    };
    this.#ending = new MovementEnd(parts);
    this.#takeover = new Takeover(parts);
    this.#decider = new Decider({
      ...parts,
      settings,
      targets: this.#targets,
      takeover: this.#takeover,
    });
    const restarts = new Restarts({ ...parts, ending: this.#ending });
    this.#executor = new Executor({
      ...parts,
      ending: this.#ending,
      takeover: this.#takeover,
      restarts,
    });
    cache.onChange((after, before) => {
      if (!after && before && this.#isServed(before)) void this.#ending.vanished(before);
      if (before && phaseOf(before) === 'New' && (!after || phaseOf(after) !== 'New')) {
        this.#exposures.leave(before.metadata.uid);
      }
    });
    options.roster.onChange((node) => {
      for (const movement of cache.list()) {
        const isNew = phaseOf(movement) === 'New';
        const agent = isNew ? options.direction.homeOf(movement) : ownerOf(movement);
        if (agent === node && !isOverFor(movement)) enqueue(keyOf(movement.metadata));
      }
    });
  }

  /** Changes nothing in the cluster: movers continue alone, and the restarted agent resumes. */
  stop(): void {
    this.#memory.stop();
  }

  /** Resolves when all running ends and clean-ups are done. */
  drain(): Promise<void> {
    return this.#beside.drain();
  }

  /** Call before starting anything: existing pods and data movers take their places first. */
  takePlaces(): void {
    const { cache, slots, settings } = this.#options;
    for (const movement of cache.list()) {
      if (this.#isHosted(movement)) this.#exposures.host(movement);
      if (!isMoving(movement) || !this.#isServed(movement) || outcomeOf(movement)) continue;
      // The mover also runs here if another agent owns the CR by now.
      const isHere =
        moverNodeOf(movement) === settings.node || isRunning(this.#decider.localPod(movement));
      if (isHere) slots.acquireAnyway(movement.metadata.uid);
    }
  }

  async reconcile(key: string, signal: AbortSignal): Promise<Result | undefined> {
    if (this.#beside.isRunning(key)) return UNDER_WAY;
    const outcome = this.#beside.take(key);
    if (outcome && 'error' in outcome) throw outcome.error;
    // A retry comes later, and will see any change made meanwhile.
    if (outcome?.result !== undefined) return outcome.result;
    const ref = refOf(key);
    const movement = this.#writer.current(ref);
    if (!movement) return undefined;
    try {
      const result = await this.#reconcile(movement, signal);
      return this.#beside.isRunning(key) ? UNDER_WAY : result;
    } finally {
      // The reconcile may have remembered a CR that was deleted meanwhile.
      const { uid } = movement.metadata;
      if (this.#options.cache.get(ref)?.metadata.uid !== uid) this.#memory.forget(uid);
    }
  }

  async #reconcile(seen: M, signal: AbortSignal): Promise<Result | undefined> {
    // A CR in the queue waits only for a place. The agent may have called it for a free place.
    const stoodInLine = phaseOf(seen) === 'New' && this.#exposures.leave(seen.metadata.uid);
    const line = { isSettled: false };
    try {
      return await this.#goOn(seen, signal, line);
    } finally {
      if (stoodInLine && !line.isSettled) this.#exposures.callNext();
    }
  }

  /** `line`: whether the CR took its place or queued again. */
  async #goOn(
    seen: M,
    signal: AbortSignal,
    line: { isSettled: boolean },
  ): Promise<Result | undefined> {
    let movement: M | undefined = seen;
    while (movement) {
      if (!this.#isServed(movement)) return undefined;
      if (isFinal(movement)) return this.#finalize(movement);
      if (movement.metadata.deletionTimestamp !== undefined && !isCancelWanted(movement)) {
        return this.#cancelDeleted(movement);
      }
      if (this.#isHosted(movement)) this.#exposures.host(movement);
      const outcome = outcomeOf(movement);
      if (outcome) return this.#goOnEnding(movement, outcome);
      const action = await this.#decider.decide(movement, signal);
      line.isSettled ||= action.do === 'claim' || action.do === 'park';
      const step = await this.#executor.carryOut(movement, action, signal);
      if ('result' in step) return step.result;
      movement = step.again;
    }
    return undefined;
  }

  /** The CR is claimed, and its hosting pod belongs on this node. */
  #isHosted(movement: M): boolean {
    if (!isPodVolume(movement) || phaseOf(movement) === 'New' || isFinal(movement)) return false;
    return podNodeOf(movement) === this.#options.settings.node;
  }

  #isServed(movement: M): boolean {
    return isServedBy(this.#options.settings.dataMovers, movement);
  }

  get #heardMs(): number {
    const { cache } = this.#options;
    return Math.min(cache.isAway ? 0 : cache.backMs, this.#writer.takenMs);
  }

  /** The pod that a restore waits for has changed. */
  targetChanged(key: string): void {
    const movement = this.#options.cache.get(refOf(key));
    if (movement) this.#targets.changed(movement.metadata.uid);
    this.#options.enqueue(key);
  }

  /** The pod of the volume is being deleted. Checks at once whether the move can continue. */
  podLost(key: string): void {
    const movement = this.#options.cache.get(refOf(key));
    const record = movement && this.#memory.get(movement.metadata.uid);
    if (!record) return;
    record.lostAskedMs = -Infinity;
    this.#options.enqueue(key);
  }

  /** The waiting pod is gone. Its last version shows that it had started with its data. */
  targetWentOn(key: string, podUid: string): void {
    const movement = this.#options.cache.get(refOf(key));
    if (!movement || !isPodVolume(movement) || movement.spec.pod.uid !== podUid) return;
    this.#memory.of(movement.metadata.uid).isSeenDone = true;
  }

  /** A pod of this node is gone. Its last version is the only record of how it ended. */
  podGone(pod: Pod, ref: { namespace?: string | undefined; name: string }): void {
    const movement = this.#options.cache.get(ref);
    if (!movement || !isPodOf(pod, movement) || !hasEnded(pod)) return;
    this.#memory.of(movement.metadata.uid).endedPod = pod.metadata.uid;
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
    const { name, shortNoun } = direction;
    const updated = await this.#writer.exclusive(movement, (copy) => {
      copy.spec.cancel = true;
      copy.status = {
        ...copy.status,
        message: `Cancel ${shortNoun} because it is being deleted`,
      };
    });
    if (updated) return { requeueAfterMs: 0 };
    this.#options.metrics.conflict(name);
    return undefined;
  }

  /** An agent died during clean-up. The outcome is recorded, so only the clean-up is left. */
  async #goOnEnding(movement: M, { phase, status }: Outcome): Promise<Result | undefined> {
    const owner = ownerOf(movement);
    if (owner !== undefined && owner !== this.#options.settings.node)
      return this.#takeover.watchOver(movement);
    return this.#beside.start(keyOf(movement.metadata), async () => {
      await this.#ending.end(movement, phase, status);
      return undefined;
    });
  }

  #finalize(movement: M): Promise<Result | undefined> | Result | undefined {
    const finalize = (): Promise<Result | undefined> => this.#ending.finalize(movement);
    if (!hasFinalizer(movement)) return finalize();
    return this.#beside.start(keyOf(movement.metadata), finalize, { isUnhurried: true });
  }
}

/** No agent has work left for this CR. */
const isOverFor = (movement: Movement): boolean => isFinal(movement) && !hasFinalizer(movement);
