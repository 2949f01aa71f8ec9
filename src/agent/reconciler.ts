import type { Clock, Logger } from '../base/index.ts';
import { hasEnded, isOutOfService } from '../exposer/index.ts';
import {
  type Cache,
  type EventRecorder,
  type KubeClient,
  keyOf,
  NODES,
  type Pod,
  PODS,
  refOf,
  type Result,
} from '../kube/index.ts';
import type { Backlog } from './backlog.ts';
import { Beside } from './beside.ts';
import { DataPaths } from './data-paths.ts';
import type { Direction } from './directions/direction.ts';
import { Ending } from './ending.ts';
import { Executor } from './executor.ts';
import { Exposures } from './exposures.ts';
import type { AgentMetrics } from './metrics.ts';
import {
  hasFinalizer,
  isCancelWanted,
  isFinal,
  millisecondsSince,
  type Movement,
  ownerOf,
  phaseOf,
  RESTARTING,
} from './movement.ts';
import { MovementWriter } from './movement-writer.ts';
import { type Outcome, outcomeOf } from './outcome.ts';
import { decideAccepting, type TargetFact } from './phases/accepting.ts';
import { type Action, isOver, isRunning, type PodFact, wait } from './phases/action.ts';
import { moverOf } from './named-mover.ts';
import { decideMoving, type WriterFact } from './phases/moving.ts';
import { decideAccepted, decidePrepared } from './phases/preparing.ts';
import { copyPodLog } from './pod-log.ts';
import { Restarts } from './restarts.ts';
import type { Roster } from './roster.ts';
import type { Slots } from './slots.ts';
import { Targets } from './targets.ts';
import { Takeover } from './takeover.ts';
import { Memory } from './tracked.ts';
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
  /** A data mover of a restore that is cut off from the API server for so long stops; well below {@link takeoverMs}. */
  readonly fenceMs: number;
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
  /** Volumes that this agent may be exposing at once in this direction. */
  readonly exposures: Slots;
  /** CRs of all kinds that are being exposed in the cluster. */
  readonly exposingCount: () => number;
  /** What waits on all nodes. */
  readonly backlog: Pick<Backlog, 'isFull'>;
  readonly recorder: EventRecorder;
  readonly metrics: AgentMetrics;
  readonly settings: ReconcilerSettings;
  /** Where the logs of data movers go when they have ended; nowhere without it. */
  readonly writeLog?: ((text: string) => void) | undefined;
  /** Looks at the key again, soon. */
  readonly enqueue: (key: string) => void;
}

/** A mover looks at its clock now and then, and the API server's time comes in seconds. */
export const FENCE_MARGIN_MS = 15_000;

const UNDER_WAY: Result = { isUnderWay: true };

/** What was read of a CR's surroundings for the decision that is being made. */
interface Read<M> {
  pod: PodFact;
  latest: M | 'unread' | 'gone';
  target: TargetFact;
  writer: WriterFact;
}

/**
 * Drives DataUploads or DataDownloads through their phases: gathers what is there, has it decided what to do next, and
 * has that done. Every step starts from what the API server has now, so that agents and movers may die at any point.
 */
export class MovementReconciler<M extends Movement> {
  readonly #options: ReconcilerOptions<M>;
  readonly #memory: Memory<M>;
  readonly #writer: MovementWriter<M>;
  readonly #turns: Turns<M>;
  readonly #targets: Targets<M>;
  readonly #exposures: Exposures<M>;
  readonly #dataPaths: DataPaths<M>;
  readonly #ending: Ending<M>;
  readonly #takeover: Takeover<M>;
  readonly #executor: Executor<M>;
  readonly #beside: Beside;

  constructor(options: ReconcilerOptions<M>) {
    this.#options = options;
    const { client, clock, cache, settings, slots, enqueue } = options;
    const { namespace } = settings;
    const memory = new Memory<M>([slots, options.exposures]);
    this.#memory = memory;
    this.#writer = new MovementWriter(client, cache, clock, memory);
    this.#turns = new Turns(options.roster, memory, cache);
    this.#targets = new Targets(this.#turns, memory);
    this.#beside = new Beside({ enqueue });
    this.#exposures = new Exposures({ slots: options.exposures, memory, enqueue });
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
    };
    this.#ending = new Ending(parts);
    this.#takeover = new Takeover(parts);
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
        if (ownerOf(movement) === node && !isOverFor(movement)) enqueue(keyOf(movement.metadata));
      }
    });
  }

  /** Leaves everything as it is: movers go on by themselves, and the agent that comes back looks after them again. */
  stop(): void {
    this.#memory.stop();
  }

  /** What ends goes on until it has: resolves then. */
  drain(): Promise<void> {
    return this.#beside.drain();
  }

  async reconcile(key: string, signal: AbortSignal): Promise<Result | undefined> {
    if (this.#beside.isRunning(key)) return UNDER_WAY;
    const outcome = this.#beside.take(key);
    if (outcome && 'error' in outcome) throw outcome.error;
    // To be tried again later. What changed meanwhile is seen then too.
    if (outcome?.result !== undefined) return outcome.result;
    const ref = refOf(key);
    const movement = this.#writer.current(ref);
    if (!movement) return undefined;
    try {
      const result = await this.#reconcile(movement, signal);
      return this.#beside.isRunning(key) ? UNDER_WAY : result;
    } finally {
      // What was done for one that went meanwhile has remembered it again.
      const { uid } = movement.metadata;
      if (this.#options.cache.get(ref)?.metadata.uid !== uid) this.#memory.forget(uid);
    }
  }

  async #reconcile(seen: M, signal: AbortSignal): Promise<Result | undefined> {
    let movement: M | undefined = seen;
    while (movement) {
      if (!this.#isServed(movement)) return undefined;
      if (isFinal(movement)) return this.#finalize(movement);
      if (movement.metadata.deletionTimestamp !== undefined && !isCancelWanted(movement)) {
        return this.#cancelDeleted(movement);
      }
      // Whatever it waits for next: it stands in line only for a place.
      if (phaseOf(movement) === 'New') this.#exposures.leave(movement.metadata.uid);
      const outcome = outcomeOf(movement);
      if (outcome) return this.#goOnEnding(movement, outcome);
      const action = await this.#decide(movement, signal);
      const step = await this.#executor.carryOut(movement, action, signal);
      if ('result' in step) return step.result;
      movement = step.again;
    }
    return undefined;
  }

  #isServed({ spec }: M): boolean {
    return this.#options.settings.dataMovers.has(spec.datamover ?? '');
  }

  /** Reads only what the decision asks for: most are made of what the watches have told. */
  async #decide(movement: M, signal: AbortSignal): Promise<Exclude<Action, { do: 'read' }>> {
    const { direction } = this.#options;
    const read: Read<M> = {
      pod: this.#localPod(movement) ?? 'unread',
      latest: 'unread',
      target: 'unread',
      writer: 'unread',
    };
    // A pod here that has ended may have been replaced long before the watch tells.
    if (typeof read.pod === 'object' && isOver(read.pod)) read.pod = 'unread';
    for (;;) {
      const action = this.#decideUpon(movement, read);
      if (action.do !== 'read') return action;
      switch (action.what) {
        case 'pod':
          read.pod = await this.#readPod(movement, signal);
          break;
        case 'latest':
          read.latest = (await this.#writer.latest(movement)) ?? 'gone';
          break;
        case 'target':
          read.target = (await direction.waitsFor(movement)) === undefined ? 'there' : 'missing';
          if (read.target === 'missing') this.#targets.missed(movement.metadata.uid);
          break;
        case 'writer':
          read.writer = await this.#readWriter(movement, signal);
      }
    }
  }

  #decideUpon(movement: M, read: Read<M>): Action {
    const { settings, direction, clock, cache, exposingCount, backlog } = this.#options;
    const { node, prepareTimeoutMs, stallTimeoutMs, prepareQueueLength } = settings;
    const { uid } = movement.metadata;
    const isUpload = direction.name === 'upload';
    const { pod } = read;
    const local = this.#localPod(movement);
    const exposure = this.#exposures.stateOf(uid);
    const { creationTimestamp } = typeof pod === 'object' ? pod.metadata : {};
    const podAgeMs = Math.min(
      millisecondsSince(clock, creationTimestamp),
      this.#exposures.madeMs(uid),
    );
    const late = {
      overdueMs: overdueMs(clock, pod),
      refusedMs: () => this.#turns.sinceMs(uid, 'refused'),
      failingMs: this.#exposures.failingMs(uid),
      heardMs: Math.min(cache.isAway ? 0 : cache.backMs, this.#writer.takenMs),
    };
    const common = { movement, node, local, pod, exposure, podAgeMs, prepareTimeoutMs };
    switch (phaseOf(movement)) {
      case 'New':
        return decideAccepting({
          movement,
          turnInMs: this.#turns.inMs(uid, 'new', {
            ageMs: millisecondsSince(clock, movement.metadata.creationTimestamp),
          }),
          problem: direction.problemOf(movement),
          isQueueFull:
            (prepareQueueLength > 0 && exposingCount() >= prepareQueueLength) || backlog.isFull(),
          hasPlace: this.#exposures.hasPlace(movement),
          target: read.target,
          targetInMs: isUpload ? (this.#targets.pausedMs(uid) ?? 0) : this.#targets.inMs(uid),
        });
      case 'Accepted':
        return decideAccepted({
          ...common,
          noun: direction.noun,
          isPodOurs: typeof pod === 'object' && isOf(pod, movement),
          latest: read.latest,
          sinceAcceptedMs: millisecondsSince(clock, movement.status?.acceptedTimestamp),
          awayInMs: (other) => this.#takeover.awayInMs(movement, other),
          ...late,
        });
      case 'Prepared':
        return decidePrepared({ ...common, ...late });
      case 'InProgress':
      case 'Canceling':
        return decideMoving({
          ...common,
          direction,
          isCompleting: direction.isCompleting(movement),
          stalledMs: this.#stalledMs(movement, pod),
          stallTimeoutMs,
          cancelingMs: () => this.#turns.sinceMs(uid, 'canceling'),
          mover: moverOf(movement),
          writer: read.writer,
          fenceInMs: this.#fenceInMs(movement),
          ...late,
        });
      case 'Completed':
      case 'Failed':
      case 'Canceled':
        return wait();
    }
  }

  /** Watches the data path of a CR of ours. Milliseconds since something last moved. */
  #stalledMs(movement: M, pod: PodFact): number {
    const { slots, settings, direction } = this.#options;
    if (movement.status?.node !== settings.node) return 0;
    slots.acquireAnyway(movement.metadata.uid);
    if (pod === 'unread' || direction.isCompleting(movement)) return 0;
    const path = this.#dataPaths.of(movement);
    // One that is not named waits for its agent, which may wait for the API server to take the name.
    const mover = moverOf(movement);
    const isNamed = typeof pod === 'object' && (!mover || mover.pod === pod.metadata.uid);
    path.podIsRunning(isNamed && isRunning(pod));
    return path.stalledMs;
  }

  /**
   * A mover that could not ask has stopped by then; it may have asked last when the agent wrote that none may write.
   * Counted from when this process saw that: the API server's clock may have been set meanwhile.
   */
  #fenceInMs(movement: M): number {
    const mover = moverOf(movement);
    if (mover?.pod !== '') return Infinity;
    const record = this.#memory.of(movement.metadata.uid);
    const { generation } = mover;
    if (record.unnamed?.generation !== generation) {
      record.unnamed = { generation, sinceMs: performance.now() };
    }
    const { fenceMs = this.#options.settings.fenceMs } = mover;
    return fenceMs + FENCE_MARGIN_MS - (performance.now() - record.unnamed.sinceMs);
  }

  /** What is known of the process of a pod that is gone. */
  async #readWriter(movement: M, signal: AbortSignal): Promise<WriterFact> {
    const { endedPod } = this.#memory.of(movement.metadata.uid);
    const mover = moverOf(movement);
    if (!mover || mover.lastPod === endedPod) return 'ended';
    // Its pod was seen, and had ended: that of one that was gone already has no UID there.
    if (movement.metadata.annotations?.[RESTARTING] === mover.lastPod) return 'ended';
    const node = await this.#options.client.find(NODES, { name: mover.node }, { signal });
    return !node || isOutOfService(node) ? 'ended' : 'unknown';
  }

  /** A pod of this node is gone: what its last version said of its end is all that will ever be known. */
  podGone(pod: Pod, ref: { namespace?: string | undefined; name: string }): void {
    const movement = this.#options.cache.get(ref);
    if (!movement || !isOf(pod, movement) || !hasEnded(pod)) return;
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
    const { name } = direction;
    const updated = await this.#writer.exclusive(movement, (copy) => {
      copy.spec.cancel = true;
      copy.status = {
        ...copy.status,
        message: `Cancel data${name} because it is being deleted`,
      };
    });
    if (updated) return { requeueAfterMs: 0 };
    this.#options.metrics.conflict(name);
    return undefined;
  }

  /** An agent died while it cleaned up: the end is known, and only that is left to do. */
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

  /** The hosting pod as the API has it: it may be on another node. */
  async #readPod(movement: M, signal: AbortSignal): Promise<PodFact> {
    const { namespace, name } = movement.metadata;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    if (!pod) return 'none';
    if (!isOf(pod, movement)) return phaseOf(movement) === 'Accepted' ? pod : 'none';
    const record = this.#memory.of(movement.metadata.uid);
    if (isOver(pod) && record.loggedPod !== pod.metadata.uid) {
      const isCopied = await copyPodLog(this.#options, pod, movement.metadata.uid);
      if (isCopied) record.loggedPod = pod.metadata.uid;
    }
    return pod;
  }

  #localPod(movement: M): Pod | undefined {
    const pod = this.#options.pods.get(movement.metadata);
    if (!pod || pod.metadata.deletionTimestamp !== undefined) return undefined;
    return isOf(pod, movement) ? pod : undefined;
  }
}

/** Nothing is left to do for it, whoever's it was. */
const isOverFor = (movement: Movement): boolean => isFinal(movement) && !hasFinalizer(movement);

/** Milliseconds since a pod that is being deleted should have ended. */
function overdueMs(clock: Clock, pod: PodFact): number {
  if (typeof pod !== 'object') return 0;
  // Kubernetes adds the grace period to the time of the deletion.
  return millisecondsSince(clock, pod.metadata.deletionTimestamp);
}

const isOf = ({ metadata }: Pod, movement: Movement): boolean =>
  metadata.ownerReferences?.some(({ uid }) => uid === movement.metadata.uid) === true;
