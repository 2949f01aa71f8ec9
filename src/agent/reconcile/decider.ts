import { type Clock, type Logger, messageOf } from '../../base/index.ts';
import { isOutOfService } from '../../exposer/index.ts';
import { type Cache, EVENTS, type KubeClient, NODES, type Pod, PODS } from '../../kube/index.ts';
import { ageMsOf, sightingOf } from './object-age.ts';
import type { Backlog } from './node-backlog.ts';
import type { DataPaths } from './data-paths.ts';
import type { Direction, MoverResult } from '../directions/direction.ts';
import type { Exposures } from './exposures.ts';
import { FENCE_MARGIN_MS } from '../mover/fence.ts';
import {
  isMoving,
  isPodOf,
  isPodVolume,
  millisecondsSince,
  type Movement,
  moverNodeOf,
  phaseOf,
  RESTARTING,
} from '../movement.ts';
import type { MovementWriter } from './movement-writer.ts';
import { moverOf, type NamedMover } from '../mover/named-mover.ts';
import { decideAccepting, type Elsewhere, type TargetFact } from '../phases/accepting.ts';
import {
  type Action,
  isOver,
  isRunning,
  type LostFact,
  type PodFact,
  wait,
} from '../phases/action.ts';
import { decideMoving, type ToldFact, type WriterFact } from '../phases/moving.ts';
import { decideAccepted, decidePrepared } from '../phases/preparing.ts';
import type { MoverLogs } from '../mover/mover-logs.ts';
import type { Slots } from './slots.ts';
import type { Takeover } from './takeover.ts';
import type { RestoreTargets } from './restore-targets.ts';
import type { Memory } from './tracked-movements.ts';
import { eventResultOf, eventsAbout } from '../mover/event-result.ts';
import type { AgentTurns } from './agent-turns.ts';

/** The facts read for the current decision on a CR. */
interface Read<M> {
  pod: PodFact;
  latest: M | 'unread' | 'gone';
  target: TargetFact;
  writer: WriterFact;
  lost: LostFact;
  seenDone: boolean | 'unread';
  told: ToldFact;
}

/** How often to look for a lost source or target. The mover also looks at its end. Our choice. */
const LOST_EVERY_MS = 30_000;
/** Agents of other nodes wait this long, so that the node with the volume goes first. */
const HOME_FIRST_MS = 5000;

export interface DeciderSettings {
  readonly node: string;
  readonly prepareTimeoutMs: number;
  readonly stallTimeoutMs: number;
  readonly fenceMs: number;
  readonly prepareQueueLength: number;
}

export interface DeciderOptions<M extends Movement> {
  readonly direction: Direction<M>;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Hosting pods on this node. */
  readonly pods: Cache<Pod>;
  readonly slots: Slots;
  readonly exposingCount: () => number;
  readonly backlog: Pick<Backlog, 'isFull'>;
  readonly settings: DeciderSettings;
  readonly writeLog?: ((text: string) => void) | undefined;
  readonly moverLogs?: Pick<MoverLogs, 'keep'> | undefined;
  readonly memory: Memory<M>;
  readonly writer: MovementWriter<M>;
  readonly turns: AgentTurns<M>;
  readonly targets: RestoreTargets<M>;
  readonly exposures: Exposures<M>;
  readonly dataPaths: DataPaths<M>;
  readonly takeover: Takeover<M>;
  /** How long the API server has been reachable and accepting writes. */
  readonly heardMs: () => number;
}

/** Actions that end the CR or remove its pod. */
const isLast = ({ do: what }: Action): boolean =>
  ['complete', 'fail', 'failDiagnosed', 'killPod', 'dropPod'].includes(what);

/** Gathers the facts for a decision on a CR. The decisions are pure functions in `phases/`. */
export class Decider<M extends Movement> {
  readonly #options: DeciderOptions<M>;

  constructor(options: DeciderOptions<M>) {
    this.#options = options;
  }

  /** Reads only the facts that the decision needs. Most decisions need only the watches. */
  async decide(movement: M, signal: AbortSignal): Promise<Exclude<Action, { do: 'read' }>> {
    const read: Read<M> = {
      pod: this.localPod(movement) ?? 'unread',
      latest: 'unread',
      target: 'unread',
      writer: 'unread',
      lost: this.#mayAskLost(movement) ? 'unread' : undefined,
      seenDone: this.#options.direction.isSeenDone ? 'unread' : false,
      told: 'unread',
    };
    // A pod that has ended may have been replaced long before the watch delivers it.
    if (typeof read.pod === 'object' && isOver(read.pod)) read.pod = 'unread';
    let isPodLatest = false;
    for (;;) {
      const action = this.#decideUpon(movement, read);
      if (action.do !== 'read') {
        // The pod is deleted next, perhaps while it runs. Its mover reported the end by an Event,
        // or hangs.
        const { pod } = read;
        if (isLast(action) && typeof pod === 'object' && isRunning(pod) && isMoving(movement)) {
          await this.#copyLog(movement, pod);
        }
        return action;
      }
      switch (action.what) {
        case 'pod':
          read.pod = await this.#readPod(movement, signal);
          isPodLatest = true;
          break;
        case 'latest':
          read.latest = (await this.#options.writer.latest(movement)) ?? 'gone';
          break;
        case 'target':
          read.target = await this.#readTarget(movement);
          break;
        case 'lost':
          read.lost = await this.#readLost(movement, signal);
          // The mover may have finished earlier, and the watch may be late.
          if (read.lost && !isPodLatest) read.pod = 'unread';
          break;
        case 'seenDone':
          read.seenDone = await this.#readSeenDone(movement, signal);
          break;
        case 'told':
          read.told = await this.#readTold(movement, signal);
          break;
        case 'writer':
          read.writer = await this.#readWriter(movement, signal);
      }
    }
  }

  #mayAskLost({ metadata: { uid } }: M): boolean {
    if (!this.#options.direction.lostReason) return false;
    return performance.now() - this.#options.memory.of(uid).lostAskedMs >= LOST_EVERY_MS;
  }

  async #readLost(movement: M, signal: AbortSignal): Promise<LostFact> {
    const record = this.#options.memory.of(movement.metadata.uid);
    record.lostAskedMs = performance.now();
    const reason = await this.#options.direction.lostReason?.(movement, signal);
    const isSure = record.isLost;
    record.isLost = reason !== undefined;
    return reason === undefined ? undefined : { reason, isSure };
  }

  async #readTarget(movement: M): Promise<TargetFact> {
    const { direction, settings } = this.#options;
    const { uid } = movement.metadata;
    const changes = this.#options.targets.changesOf(uid);
    const hindrance = await direction.hindranceOf(movement);
    if (!hindrance) return 'there';
    if ('never' in hindrance || 'doneBy' in hindrance) return hindrance;
    const isHere = 'waitsFor' in hindrance && hindrance.isHere === true;
    const isOwn = isHere || direction.homeOf(movement) === settings.node;
    this.#options.targets.missed(uid, { changes, isOwn });
    return 'node' in hindrance ? this.#elsewhere(movement, hindrance.node) : 'missing';
  }

  #elsewhere(movement: M, node: string): Elsewhere {
    return { node, awayInMs: this.#options.takeover.awayInMs(movement, node) };
  }

  #decideUpon(movement: M, read: Read<M>): Action {
    const { settings, direction, clock, exposingCount, backlog } = this.#options;
    const { node, prepareTimeoutMs, stallTimeoutMs, prepareQueueLength } = settings;
    const { uid } = movement.metadata;
    const { pod } = read;
    const local = this.localPod(movement);
    // The pod found room. A later lack of room counts from zero.
    if (isRunning(local)) this.#options.turns.reset(uid, 'noRoom');
    const exposure = this.#options.exposures.stateOf(uid);
    const podAgeMs = Math.min(this.#podAgeMs(uid, pod), this.#options.exposures.madeMs(uid));
    const late = {
      overdueMs: overdueMs(clock, pod),
      refusedMs: () => this.#options.turns.sinceMs(uid, 'refused'),
      noRoomMs: () => this.#options.turns.sinceMs(uid, 'noRoom'),
      failingMs: this.#options.exposures.failingMs(uid),
      heardMs: this.#options.heardMs(),
    };
    const common = { movement, node, local, pod, exposure, podAgeMs, prepareTimeoutMs };
    switch (phaseOf(movement)) {
      case 'New': {
        const home = direction.homeOf(movement);
        const ageMs = millisecondsSince(clock, movement.metadata.creationTimestamp);
        const afterMs = home === undefined ? 0 : HOME_FIRST_MS;
        const isHere = home === node;
        const pauseMs = this.#options.targets.pausedMs(uid) ?? 0;
        return decideAccepting({
          movement,
          turnInMs: isHere ? 0 : this.#options.turns.inMs(uid, 'new', { ageMs, afterMs }),
          problem: direction.problemOf(movement),
          isQueueFull:
            (prepareQueueLength > 0 && exposingCount() >= prepareQueueLength) ||
            // CRs of pod volumes have their own places, because their node is fixed.
            (!isPodVolume(movement) && backlog.isFull()),
          hasPlace: this.#options.exposures.hasPlace(movement),
          looksFirst: isPodVolume(movement),
          elsewhere: home === undefined || isHere ? undefined : this.#elsewhere(movement, home),
          target: read.target,
          targetInMs: isHere || direction.isCheapToLook ? pauseMs : this.#options.targets.inMs(uid),
        });
      }
      case 'Accepted':
        return decideAccepted({
          ...common,
          noun: direction.noun,
          isPodOurs: typeof pod === 'object' && isPodOf(pod, movement),
          latest: read.latest,
          lost: read.lost,
          sinceAcceptedMs: this.#acceptedMs(movement),
          awayInMs: (other) => this.#options.takeover.awayInMs(movement, other),
          ...late,
        });
      case 'Prepared':
        return decidePrepared({ ...common, lost: read.lost, ...late });
      case 'InProgress':
      case 'Canceling':
        return decideMoving({
          ...common,
          direction,
          isCompleting: direction.isCompleting(movement),
          stalledMs: this.#stalledMs(movement, pod),
          stallTimeoutMs,
          told: this.#toldBy(moverOf(movement), movement, read),
          cancelingMs: () => this.#options.turns.sinceMs(uid, 'canceling'),
          mover: moverOf(movement),
          writer: read.writer,
          lost: read.lost,
          seenDone: read.seenDone,
          fenceInMs: this.#fenceInMs(movement),
          ...late,
        });
      case 'Completed':
      case 'Failed':
      case 'Canceled':
        return wait();
    }
  }

  #podAgeMs(uid: string, pod: PodFact): number {
    if (typeof pod !== 'object') return 0;
    const { creationTimestamp, uid: podUid } = pod.metadata;
    const record = this.#options.memory.of(uid);
    // A pod that existed before is seen before this process makes one.
    const madeMs = record.exposure && performance.now() - record.exposure.sinceMs;
    const { clock } = this.#options;
    record.podSeen = sightingOf(record.podSeen, podUid, clock, creationTimestamp, madeMs);
    return ageMsOf(record.podSeen);
  }

  #acceptedMs({ metadata: { uid }, status }: M): number {
    const record = this.#options.memory.of(uid);
    const time = status?.acceptedTimestamp ?? '';
    record.claimSeen = sightingOf(record.claimSeen, time, this.#options.clock, time);
    return ageMsOf(record.claimSeen);
  }

  /** Watches the data path of this agent's CR. Milliseconds since its mover last reported. */
  #stalledMs(movement: M, pod: PodFact): number {
    const { slots, settings, direction } = this.#options;
    if (moverNodeOf(movement) !== settings.node) return 0;
    slots.acquireAnyway(movement.metadata.uid);
    if (pod === 'unread' || direction.isCompleting(movement)) return 0;
    const path = this.#options.dataPaths.of(movement);
    // An unnamed mover waits for its agent, and the agent may wait for the API server.
    const mover = moverOf(movement);
    const isNamed = typeof pod === 'object' && (!mover || mover.pod === pod.metadata.uid);
    path.podIsRunning(isNamed && isRunning(pod));
    return path.stalledMs;
  }

  /** The result of the named mover only. Data that an earlier mover moved may be lost by now. */
  #toldBy(mover: NamedMover | undefined, movement: M, { told }: Read<M>): ToldFact {
    if (!mover || mover.pod === '') return undefined;
    return this.#options.dataPaths.resultOf(movement, mover.pod) ?? told;
  }

  /** Read from the API server, because the watch may be late or new. */
  async #readTold(movement: M, signal: AbortSignal): Promise<MoverResult | undefined> {
    const scope = {
      namespace: movement.metadata.namespace,
      fieldSelector: eventsAbout(movement),
    };
    const events = await this.#options.client.list(EVENTS, { ...scope, signal });
    const named = moverOf(movement)?.pod;
    for (const event of events) {
      const told = eventResultOf(event);
      if (told && told.pod === named) return told.result;
    }
    return undefined;
  }

  /**
   * Milliseconds until an unreachable mover has certainly stopped itself. Its last contact may be
   * as late as the write that took the name away. Counted from when this process saw that write,
   * because the API server's clock may be set.
   */
  #fenceInMs(movement: M): number {
    const mover = moverOf(movement);
    if (mover?.pod !== '') return Infinity;
    const record = this.#options.memory.of(movement.metadata.uid);
    const { generation } = mover;
    if (record.unnamed?.generation !== generation) {
      record.unnamed = { generation, sinceMs: performance.now() };
    }
    const { fenceMs = this.#options.settings.fenceMs } = mover;
    return fenceMs + FENCE_MARGIN_MS - (performance.now() - record.unnamed.sinceMs);
  }

  async #readSeenDone(movement: M, signal: AbortSignal): Promise<boolean> {
    if (this.#options.memory.of(movement.metadata.uid).isSeenDone) return true;
    return (await this.#options.direction.isSeenDone?.(movement, signal)) === true;
  }

  /** Whether the process of a vanished pod has ended. */
  async #readWriter(movement: M, signal: AbortSignal): Promise<WriterFact> {
    const { endedPod } = this.#options.memory.of(movement.metadata.uid);
    const mover = moverOf(movement);
    if (!mover || mover.lastPod === endedPod) return 'ended';
    // The pod was seen after its end. The annotation has no UID if the pod had already vanished.
    if (movement.metadata.annotations?.[RESTARTING] === mover.lastPod) return 'ended';
    const node = await this.#options.client.find(NODES, { name: mover.node }, { signal });
    return !node || isOutOfService(node) ? 'ended' : 'unknown';
  }

  /** The hosting pod from the API server; it may be on another node. */
  async #readPod(movement: M, signal: AbortSignal): Promise<PodFact> {
    const { namespace, name } = movement.metadata;
    const pod = await this.#options.client.find(PODS, { namespace, name }, { signal });
    if (!pod) return 'none';
    if (!isPodOf(pod, movement)) return phaseOf(movement) === 'Accepted' ? pod : 'none';
    if (isOver(pod)) await this.#copyLog(movement, pod);
    return pod;
  }

  async #copyLog(movement: M, pod: Pod): Promise<void> {
    const record = this.#options.memory.of(movement.metadata.uid);
    const { client, writeLog, moverLogs } = this.#options;
    if (record.loggedPod === pod.metadata.uid || (!writeLog && !moverLogs)) return;
    const container = movement.metadata.uid;
    const read = await readPodLog(client, pod, container);
    writeLog?.(framedPodLog(read, pod, container));
    if (!('text' in read)) return;
    record.loggedPod = pod.metadata.uid;
    moverLogs?.keep(movement, pod, read.text);
  }

  localPod(movement: M): Pod | undefined {
    const pod = this.#options.pods.get(movement.metadata);
    if (!pod || pod.metadata.deletionTimestamp !== undefined) return undefined;
    return isPodOf(pod, movement) ? pod : undefined;
  }
}

/** Milliseconds since a pod that is being deleted should have ended. */
function overdueMs(clock: Clock, pod: PodFact): number {
  if (typeof pod !== 'object') return 0;
  // Kubernetes adds the grace period to the time of the deletion.
  return millisecondsSince(clock, pod.metadata.deletionTimestamp);
}

const STARS = '*'.repeat(27);
/** Only the last MiB of a log is kept. Longshore's lines have more than 64 bytes. */
const LOG_BYTES_MAX = 1 << 20;
const LOG_LINES_MAX = LOG_BYTES_MAX / 64;
/** An unreachable node does not answer, and the CR waits meanwhile. */
const READ_MS = 10_000;

/** The last MiB of a data mover's log, or the failure. Read before the pod is deleted. */
async function readPodLog(
  client: KubeClient,
  pod: Pod,
  container: string,
): Promise<{ readonly text: string } | { readonly failure: string }> {
  try {
    const limits = { tailLines: LOG_LINES_MAX, bytesMax: LOG_BYTES_MAX };
    const signal = AbortSignal.timeout(READ_MS);
    return { text: await client.podLog(pod.metadata, container, { ...limits, signal }) };
  } catch (error) {
    return { failure: messageOf(error) };
  }
}

/** Framed as in Velero, for the agent's own log (pkg/util/kube/pod.go, CollectPodLogs). */
function framedPodLog(
  read: Awaited<ReturnType<typeof readPodLog>>,
  pod: Pod,
  container: string,
): string {
  const text = 'text' in read ? read.text : `No present log retrieved, err: ${read.failure}\n`;
  const where = `pod logs[${pod.metadata.name}/${container}]`;
  return `${STARS}begin ${where}${STARS}\n${text}${text.endsWith('\n') ? '' : '\n'}${STARS}end ${where}${STARS}\n`;
}
