import { isCode, messageOf } from '../../base/index.ts';
import { refusalOf, terminationOf, unrecoverable } from '../../exposer/index.ts';
import { isPassing, type Pod } from '../../kube/index.ts';
import {
  claimantOf,
  isCancelWanted,
  isCounted,
  isSameStage,
  type Movement,
  moverNodeOf,
} from '../movement.ts';
import { isQuotaFull, isRightGone, RIGHTS_MS } from '../rights.ts';
import type { ExposureState } from '../reconcile/tracked-movements.ts';
import {
  type Action,
  deathOf,
  fail,
  isOver,
  isRunning,
  LOOK_MS,
  type LostFact,
  OVERDUE_MS,
  type PodFact,
  read,
  wait,
} from './action.ts';

const LOOK_MS_MAX = 30_000;
/** Longest pause before a node without room is tried again. Our choice. */
const REFUSED_MS_MAX = 60_000;

/** How long a passing failure is retried. */
export interface Patience {
  readonly prepareTimeoutMs: number;
  /** Milliseconds since the API server was reachable and accepting writes again. */
  readonly heardMs: number;
  /** Milliseconds since a right was first missing. */
  readonly refusedMs: () => number;
  /** Milliseconds since the pod first found no room, on its node or in the namespace's quota. */
  readonly noRoomMs: () => number;
  /** Milliseconds since exposing first failed, if every try since has failed. */
  readonly failingMs: number;
}

export interface AcceptedFacts extends Patience {
  readonly movement: Movement;
  /** This agent's node. */
  readonly node: string;
  /** The CR's kind in Velero's messages. */
  readonly noun: string;
  /** The hosting pod, if it is on this node. */
  readonly local: Pod | undefined;
  readonly pod: PodFact;
  /** Why the volume cannot be moved; undefined if no reason is known. */
  readonly lost: LostFact;
  readonly isPodOurs: boolean;
  readonly exposure: ExposureState | undefined;
  /** The CR as read from the API server. */
  readonly latest: Movement | 'unread' | 'gone';
  readonly sinceAcceptedMs: number;
  readonly podAgeMs: number;
  /** Milliseconds until this agent may replace the agent of a node that is away. */
  readonly awayInMs: (node: string) => number;
}

/** Accepted: the claimant exposes the volume; the agent on the pod's node sets Prepared. */
export function decideAccepted(facts: AcceptedFacts): Action {
  const { movement, node, noun, local, pod, exposure, latest, prepareTimeoutMs } = facts;
  const isCanceled = isCancelWanted(movement);
  if (isRunning(local) && !isCanceled) return { do: 'setPrepared' };
  if (claimantOf(movement) !== node) return { do: 'watchOver' };
  if (isCanceled) return decideCanceled(exposure);
  if (exposure === 'running') return wait(LOOK_MS);
  if (typeof exposure === 'object') {
    const { error } = exposure;
    return mayPass(error, facts) ? { do: 'forgetExposure', error } : fail(messageOf(error));
  }
  if (pod === 'unread') return read('pod');
  if (pod === 'none' || exposure === undefined) {
    // The pod is missing: an agent died halfway, the pod was deleted, or the CR is over and the
    // watch is late. Each step of an exposure reuses existing objects.
    if (latest === 'unread') return read('latest');
    if (latest === 'gone' || !isSameStage(latest, movement)) return wait();
    if (exposure === 'done' && isLate(facts.sinceAcceptedMs, facts)) {
      return fail(`timeout on preparing ${noun}: its pod was deleted`);
    }
    return { do: 'expose' };
  }
  if (!facts.isPodOurs) return fail(`pod ${pod.metadata.name} was not made for this ${noun}`);
  if (facts.lost === 'unread') return read('lost');
  if (facts.lost) return fail(facts.lost.reason);
  const refusal = refusalOf(pod);
  if (refusal !== undefined) {
    return decideRefused(pod, refusal, facts, `timeout on preparing ${noun}: `);
  }
  if (pod.status?.phase === 'Failed' && terminationOf(pod) === undefined) {
    return isCounted(movement, pod)
      ? { do: 'replace', pod }
      : { do: 'countDeath', pod, reason: deathOf(pod) };
  }
  const broken = unrecoverable(pod);
  if (broken !== undefined) return fail(broken);
  // The pod runs on another node, whose agent should continue. This agent does so only if the other
  // agent is away for long.
  if (isRunning(pod) && facts.awayInMs(pod.spec.nodeName ?? '') <= 0) return { do: 'setPrepared' };
  if (isLate(facts.podAgeMs, facts)) {
    return { do: 'failDiagnosed', message: `timeout on preparing ${noun}: ` };
  }
  // The agent on the pod's node sets Prepared. This agent looks for obstacles, less often as the
  // pod gets older.
  const pauseMs = Math.min(LOOK_MS_MAX, Math.max(LOOK_MS, facts.podAgeMs / 2));
  const leftMs = prepareTimeoutMs - facts.podAgeMs;
  return wait(leftMs > 0 ? Math.min(pauseMs, leftMs) : pauseMs);
}

/**
 * The node has no room for the pod. Only its kubelet knows that, because no scheduler chose the
 * node. The pod is recreated until the prepare timeout, and no death of a mover is counted. Until
 * then the refused pod stays: it uses no resources of the node.
 */
export function decideRefused(
  pod: Pod,
  refusal: string,
  facts: Patience & Pick<AcceptedFacts, 'movement' | 'podAgeMs'>,
  prefix: string,
): Action {
  const { movement, podAgeMs } = facts;
  if (isCounted(movement, pod)) return { do: 'replace', pod };
  const reason = `node ${pod.spec.nodeName ?? ''} has no room for the pod of the data mover: ${refusal}`;
  const noRoomMs = facts.noRoomMs();
  if (isLate(noRoomMs, facts)) return fail(prefix + reason);
  const pauseMs = Math.min(REFUSED_MS_MAX, Math.max(LOOK_MS, noRoomMs / 2));
  return podAgeMs < pauseMs ? wait(pauseMs - podAgeMs) : { do: 'noteRefusal', pod, reason };
}

/** Time for other components to return after an outage and report what happened. Our choice. */
const SETTLE_MS = 300_000;
export const DAY_MS = 86_400_000;

type Hearing = Pick<Patience, 'prepareTimeoutMs' | 'heardMs'>;

const isSettled = ({ prepareTimeoutMs, heardMs }: Hearing): boolean =>
  heardMs >= Math.min(SETTLE_MS, prepareTimeoutMs);

/**
 * Whether the prepare timeout is over. After an outage the timeout waits until all components may
 * have caught up, for at most a day.
 */
export const isLate = (ms: number, hearing: Hearing): boolean =>
  ms >= hearing.prepareTimeoutMs && (isSettled(hearing) || ms >= hearing.prepareTimeoutMs + DAY_MS);

/** Stop a running exposure first: it would recreate objects that the clean-up deletes. */
export const decideCanceled = (exposure: ExposureState | undefined): Action =>
  exposure === 'running' ? { do: 'abortExposure' } : { do: 'cancel' };

export interface PreparedFacts extends Patience {
  readonly movement: Movement;
  readonly node: string;
  readonly pod: PodFact;
  readonly podAgeMs: number;
  /** As in {@link AcceptedFacts}. */
  readonly lost: LostFact;
  /** State of the replacement pod after a mover died. */
  readonly exposure: ExposureState | undefined;
  /** Milliseconds since the pod should have ended. */
  readonly overdueMs: number;
}

/** Prepared: the agent on the pod's node starts the data path when it has a free place. */
export function decidePrepared(facts: PreparedFacts): Action {
  const { movement, node, pod, exposure, overdueMs } = facts;
  if (moverNodeOf(movement) !== node) return { do: 'watchOver' };
  if (isCancelWanted(movement)) return decideCanceled(exposure);
  if (exposure !== undefined) return decideRestarting(exposure, facts);
  // The pod may wait hours for its turn. A pod keeps running even if the node has unmounted its
  // volume, so check the volume first.
  if (facts.lost === 'unread') return read('lost');
  if (facts.lost) return fail(facts.lost.reason);
  if (pod === 'unread') return read('pod');
  if (pod !== 'none' && !isOver(pod)) {
    if (!pod.metadata.deletionTimestamp) return { do: 'start', pod };
    return overdueMs > OVERDUE_MS ? { do: 'dropPod', pod } : wait(LOOK_MS);
  }
  // The mover was waiting for the start, so it has written nothing.
  const dead = pod === 'none' ? undefined : pod;
  const refusal = dead && refusalOf(dead);
  if (dead && refusal !== undefined) {
    return decideRefused(dead, refusal, facts, 'the data mover could not be started again: ');
  }
  if (!isCounted(movement, dead)) return { do: 'countDeath', pod: dead, reason: deathOf(dead) };
  return { do: 'replace', pod: dead };
}

/** While the pod of a dead mover is recreated, beside the reconciler. */
export function decideRestarting(exposure: ExposureState, patience: Patience): Action {
  if (exposure === 'running') return wait(LOOK_MS);
  if (exposure === 'done') return { do: 'restarted' };
  const { error } = exposure;
  if (mayPass(error, patience)) return { do: 'forgetExposure', error };
  return fail(`the data mover died, and could not be started again: ${messageOf(error)}`);
}

/** Whether the timeout may be the fault of a recent outage. */
export const isCutShort = (error: unknown, hearing: Hearing): boolean =>
  isCode(error, 'WAIT_TIMEOUT') && !isSettled(hearing);

/** Every retry has a limit: an endless retry would hide a permanent failure. */
function mayPass(error: unknown, patience: Patience): boolean {
  if (isQuotaFull(error)) return !isLate(patience.noRoomMs(), patience);
  if (isRightGone(error)) return patience.refusedMs() < RIGHTS_MS;
  const isForNow = isPassing(error) || isCutShort(error, patience);
  return isForNow && !isLate(patience.failingMs, patience);
}
