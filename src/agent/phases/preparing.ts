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
import type { ExposureState } from '../tracked.ts';
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
/** A node that had no room is asked again no less often. Our choice. */
const REFUSED_MS_MAX = 60_000;

/** How long it is tried again for a reason that may pass. */
export interface Patience {
  readonly prepareTimeoutMs: number;
  /**
   * Milliseconds since this agent heard the API server again, after it was away or took no writes.
   */
  readonly heardMs: number;
  /** Milliseconds since a right was missing first. */
  readonly refusedMs: () => number;
  /**
   * Milliseconds since there was no room for its pod first: on its node, or in the quota of the
   * namespace.
   */
  readonly noRoomMs: () => number;
  /**
   * Milliseconds since making it available failed first, when it has failed again and again since.
   */
  readonly failingMs: number;
}

export interface AcceptedFacts extends Patience {
  readonly movement: Movement;
  /** This agent's. */
  readonly node: string;
  /** As Velero's messages name it. */
  readonly noun: string;
  /** The hosting pod, when it is on this node. */
  readonly local: Pod | undefined;
  readonly pod: PodFact;
  /** Why it cannot be moved any more; undefined while it can, as far as is known. */
  readonly lost: LostFact;
  /** The pod was made for this CR. */
  readonly isPodOurs: boolean;
  readonly exposure: ExposureState | undefined;
  /** As the API server has the CR now. */
  readonly latest: Movement | 'unread' | 'gone';
  readonly sinceAcceptedMs: number;
  readonly podAgeMs: number;
  /**
   * Milliseconds until the agent of a node counts as away for good, and it is this one's turn to
   * replace it.
   */
  readonly awayInMs: (node: string) => number;
}

/**
 * Accepted: the agent that claimed makes the volume available; the one on the pod's node says when
 * it is.
 */
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
    // Half made by an agent that died on the way, or deleted since: each step of it finds what is
    // there. Or gone because it is over, and the watch is behind.
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
  // On the node of another agent, which is to go on; unless there is none, for long.
  if (isRunning(pod) && facts.awayInMs(pod.spec.nodeName ?? '') <= 0) return { do: 'setPrepared' };
  if (isLate(facts.podAgeMs, facts)) {
    return { do: 'failDiagnosed', message: `timeout on preparing ${noun}: ` };
  }
  // The agent on its node says when it runs: this one asks for what keeps it from that, and less
  // often as it gets older.
  const pauseMs = Math.min(LOOK_MS_MAX, Math.max(LOOK_MS, facts.podAgeMs / 2));
  const leftMs = prepareTimeoutMs - facts.podAgeMs;
  return wait(leftMs > 0 ? Math.min(pauseMs, leftMs) : pauseMs);
}

/**
 * Its node has no room for the pod, which only its kubelet knows where no scheduler was asked: it
 * is made again until the prepare time-out. No mover has died of that. Meanwhile the pod that was
 * refused stays: it takes no place on the node.
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

/** Others have to come back first, and nodes have to say what they did meanwhile. Our choice. */
const SETTLE_MS = 300_000;
export const DAY_MS = 86_400_000;

type Hearing = Pick<Patience, 'prepareTimeoutMs' | 'heardMs'>;

const isSettled = ({ prepareTimeoutMs, heardMs }: Hearing): boolean =>
  heardMs >= Math.min(SETTLE_MS, prepareTimeoutMs);

/**
 * Whether the prepare time-out is over; after the API server was away or took no writes it is not,
 * until all may have caught up.
 */
export const isLate = (ms: number, hearing: Hearing): boolean =>
  ms >= hearing.prepareTimeoutMs && (isSettled(hearing) || ms >= hearing.prepareTimeoutMs + DAY_MS);

/** What is under way stops first: it would make anew what the clean-up removes. */
export const decideCanceled = (exposure: ExposureState | undefined): Action =>
  exposure === 'running' ? { do: 'abortExposure' } : { do: 'cancel' };

export interface PreparedFacts extends Patience {
  readonly movement: Movement;
  readonly node: string;
  readonly pod: PodFact;
  readonly podAgeMs: number;
  /** As in {@link AcceptedFacts}. */
  readonly lost: LostFact;
  /** Of the new pod of a mover that died. */
  readonly exposure: ExposureState | undefined;
  /** Milliseconds since the pod should have ended. */
  readonly overdueMs: number;
}

/** Prepared: the agent on the pod's node starts the data path when it has a place for it. */
export function decidePrepared(facts: PreparedFacts): Action {
  const { movement, node, pod, exposure, overdueMs } = facts;
  if (moverNodeOf(movement) !== node) return { do: 'watchOver' };
  if (isCancelWanted(movement)) return decideCanceled(exposure);
  if (exposure !== undefined) return decideRestarting(exposure, facts);
  // Its pod holds the volume, also when the node has unmounted it: it may wait for its turn for
  // hours.
  if (facts.lost === 'unread') return read('lost');
  if (facts.lost) return fail(facts.lost.reason);
  if (pod === 'unread') return read('pod');
  if (pod !== 'none' && !isOver(pod)) {
    if (!pod.metadata.deletionTimestamp) return { do: 'start', pod };
    return overdueMs > OVERDUE_MS ? { do: 'dropPod', pod } : wait(LOOK_MS);
  }
  // It has written nothing yet: it waits for the start.
  const dead = pod === 'none' ? undefined : pod;
  const refusal = dead && refusalOf(dead);
  if (dead && refusal !== undefined) {
    return decideRefused(dead, refusal, facts, 'the data mover could not be started again: ');
  }
  if (!isCounted(movement, dead)) return { do: 'countDeath', pod: dead, reason: deathOf(dead) };
  return { do: 'replace', pod: dead };
}

/** While the pod of a mover that died is made anew, beside the reconciler. */
export function decideRestarting(exposure: ExposureState, patience: Patience): Action {
  if (exposure === 'running') return wait(LOOK_MS);
  if (exposure === 'done') return { do: 'restarted' };
  const { error } = exposure;
  if (mayPass(error, patience)) return { do: 'forgetExposure', error };
  return fail(`the data mover died, and could not be started again: ${messageOf(error)}`);
}

/** What was waited for may not have been able to come. */
export const isCutShort = (error: unknown, hearing: Hearing): boolean =>
  isCode(error, 'WAIT_TIMEOUT') && !isSettled(hearing);

/** A failure that never passes would be retried forever, and nobody would know. */
function mayPass(error: unknown, patience: Patience): boolean {
  if (isQuotaFull(error)) return !isLate(patience.noRoomMs(), patience);
  if (isRightGone(error)) return patience.refusedMs() < RIGHTS_MS;
  const isForNow = isPassing(error) || isCutShort(error, patience);
  return isForNow && !isLate(patience.failingMs, patience);
}
