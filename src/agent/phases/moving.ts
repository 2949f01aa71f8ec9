import { refusalOf, terminationOf, unrecoverable } from '../../exposer/index.ts';
import type { Pod } from '../../kube/index.ts';
import { NOT_MOUNTED_SUFFIX } from '../../mover/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import { FENCED_SUFFIX } from '../mover/fence.ts';
import { isCancelWanted, isCounted, type Movement, moverNodeOf, phaseOf } from '../movement.ts';
import type { NamedMover } from '../mover/named-mover.ts';
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
import {
  decideCanceled,
  decideRefused,
  decideRestarting,
  isLate,
  type Patience,
} from './preparing.ts';

export interface MovingFacts extends Patience {
  readonly movement: Movement;
  readonly node: string;
  readonly direction: {
    readonly moves: 'backup' | 'restore';
    /** The missing part of a mover's result; undefined if complete. */
    lacks(result: MoverResult): string | undefined;
  };
  readonly local: Pod | undefined;
  readonly pod: PodFact;
  /** State of the replacement pod after a mover died. */
  readonly exposure: ExposureState | undefined;
  /** Result that the named mover sent as an Event, before its pod shows it. */
  readonly told: ToldFact;
  /** The data is moved; only the last step is left. */
  readonly isCompleting: boolean;
  readonly stalledMs: number;
  readonly stallTimeoutMs: number;
  readonly podAgeMs: number;
  /** Milliseconds since the mover was asked to stop. */
  readonly cancelingMs: () => number;
  /** The mover that may write, according to the CR. */
  readonly mover: NamedMover | undefined;
  /** Whether a vanished pod's process may still write, on a node that is only cut off. */
  readonly writer: WriterFact;
  /** Milliseconds until an unreachable mover has stopped itself; counts while none is named. */
  readonly fenceInMs: number;
  /** Milliseconds since the pod should have ended. */
  readonly overdueMs: number;
  /** Why the move must fail even if its mover is healthy; undefined if no reason is known. */
  readonly lost: LostFact;
  /** Whether the waiting pod has its data; `unread` until a decision needs it. */
  readonly seenDone: boolean | 'unread';
}

/** `unread` if only the watch was read, which may be late. */
export type ToldFact = MoverResult | 'unread' | undefined;
/** `unread` until a decision needs it. */
export type WriterFact = 'unread' | 'ended' | 'unknown';

/** Measured like {@link OVERDUE_MS}. After this time a lost node has lost its volumes too. */
const LOST_MS = 360_000;
/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const CANCELED_SUFFIX = 'data path is canceled';

/** InProgress and Canceling: the pod decides how the CR ends. */
export function decideMoving(facts: MovingFacts): Action {
  const { movement, node, direction, local, pod, exposure } = facts;
  if (moverNodeOf(movement) !== node) {
    return isRunning(local) ? { do: 'takeOver', pod: local } : { do: 'watchOver' };
  }
  if (facts.isCompleting) return { do: 'complete', result: {} };
  if (exposure !== undefined) {
    if (isCancelWanted(movement)) return decideCanceled(exposure);
    const action = decideRestarting(exposure, facts);
    return action.do === 'fail' ? unlessSeenDone(facts, () => action) : action;
  }
  if (pod === 'unread') return read('pod');
  const { told } = facts;
  if (told === 'unread') {
    // A result sent before the death counts.
    if (pod === 'none' || hasEndedWithoutResult(pod)) return read('told');
  } else if (told && direction.lacks(told) === undefined) {
    return { do: 'complete', result: told };
  }
  if (pod !== 'none' && isOver(pod)) return decideEnded(facts, pod);
  if (isCancelWanted(movement)) return decideCanceling(facts, pod);
  if (facts.lost === 'unread') return read('lost');
  const { lost } = facts;
  if (lost !== undefined && (lost.isSure || pod === 'none' || !isRunning(pod))) {
    return unlessSeenDone(facts, () => fail(lost.reason));
  }
  if (pod === 'none') return decideGone(facts);
  if (facts.overdueMs > OVERDUE_MS) return decideOverdue(facts, pod);
  if (isRunning(pod) && !pod.metadata.deletionTimestamp && facts.mover?.pod !== pod.metadata.uid) {
    return { do: 'name', pod };
  }
  if (isStalled(facts)) {
    const minutes = Math.round(facts.stallTimeoutMs / 60_000);
    return fail(`no progress for ${minutes} min: the data mover, the volume or the storage hangs`);
  }
  if (!isRunning(pod)) {
    const broken = unrecoverable(pod);
    const message = 'the data mover could not be started again: ';
    if (broken !== undefined) return unlessSeenDone(facts, () => fail(message + broken));
    if (isLate(facts.podAgeMs, facts)) {
      return unlessSeenDone(facts, () => ({ do: 'failDiagnosed', message }));
    }
  }
  return wait(LOOK_MS);
}

function decideCanceling(facts: MovingFacts, pod: Pod | 'none'): Action {
  if (phaseOf(facts.movement) === 'InProgress') return { do: 'setCanceling' };
  if (pod === 'none') return { do: 'cancel' };
  const waitedMs = facts.cancelingMs();
  if (waitedMs >= CANCEL_GRACE_MS) return { do: 'killPod', pod };
  return wait(Math.min(LOOK_MS, CANCEL_GRACE_MS - waitedMs));
}

/** A mover may die after finishing its work. A retry might have no pod to restore for. */
function unlessSeenDone({ seenDone }: MovingFacts, otherwise: () => Action): Action {
  if (seenDone === 'unread') return read('seenDone');
  return seenDone ? { do: 'complete', result: {} } : otherwise();
}

/** The pod vanished without a result. Its mover may be dead, or cut off and still writing. */
function decideGone(facts: MovingFacts): Action {
  const { movement, direction, mover, writer, fenceInMs } = facts;
  // Counting a death clears the mover's name, so a named mover is not counted yet.
  const isNamed = mover !== undefined && mover.pod !== '';
  if (isNamed || !isCounted(movement, undefined)) {
    return unlessSeenDone(facts, () => ({
      do: 'countDeath',
      pod: undefined,
      reason: deathOf(undefined),
    }));
  }
  // Two movers may read one snapshot, and a mover that was never named has not written.
  if (direction.moves === 'backup' || !mover) return { do: 'replace', pod: undefined };
  if (writer === 'unread') return read('writer');
  if (writer === 'ended' || fenceInMs <= 0) return { do: 'replace', pod: undefined };
  return {
    do: 'waitForWriter',
    message: `the data mover's pod on node ${mover.node} is gone, but its process may still be running: waiting until it must have stopped by itself`,
    ms: Math.min(LOOK_MS, fenceInMs),
  };
}

/** Movers start only when they are named. This mover has written nothing and never will. */
const wasNeverNamed = ({ metadata: { uid } }: Pod, mover: NamedMover | undefined): boolean =>
  mover !== undefined && mover.pod !== uid && mover.lastPod !== uid;

/** A living mover reports soon after the API server accepts writes again. */
const isStalled = ({ stalledMs, stallTimeoutMs, heardMs }: MovingFacts): boolean =>
  isLate(stalledMs, { prepareTimeoutMs: stallTimeoutMs, heardMs });

/** The node does not stop the pod, because it is lost or cut off. */
function decideOverdue(facts: MovingFacts, pod: Pod): Action {
  const node = pod.spec.nodeName ?? '';
  if (wasNeverNamed(pod, facts.mover)) return { do: 'dropPod', pod };
  if (facts.direction.moves === 'backup' && facts.overdueMs > LOST_MS)
    return { do: 'dropPod', pod };
  if (isStalled(facts)) {
    return fail(
      `node ${node} is lost and its data mover may still be writing, so no other data mover was started`,
    );
  }
  return {
    do: 'waitForWriter',
    message: `node ${node} has not stopped the data mover, which may still be writing: if the node is gone for good, delete it or add the taint node.kubernetes.io/out-of-service`,
    ms: LOOK_MS,
  };
}

/** The pod has ended. Its termination message is the outcome; a pod without a message died. */
function decideEnded(facts: MovingFacts, pod: Pod): Action {
  const { movement, direction, mover } = facts;
  // Only the named mover's message counts. Other movers never started.
  const isNamed = mover === undefined || mover.pod === pod.metadata.uid;
  const message = isNamed ? (terminationOf(pod) ?? '') : '';
  const again = (reason: string): Action =>
    unlessSeenDone(facts, () =>
      isCounted(movement, pod) ? { do: 'replace', pod } : { do: 'countDeath', pod, reason },
    );
  // A reported result means that the mover had finished, even if it was killed afterwards.
  const result = parseResult(message);
  if (result || (isNamed && pod.status?.phase === 'Succeeded')) {
    // Without the missing part nothing can find the data. Run it again; stored data is reused.
    const missing = result ? direction.lacks(result) : 'it did not report its outcome';
    if (missing !== undefined) return again(missing);
    return { do: 'complete', result: result ?? {} };
  }
  if (isCancelWanted(movement)) return { do: 'cancel' };
  const refusal = mover?.pod === pod.metadata.uid ? undefined : refusalOf(pod);
  if (refusal !== undefined) {
    const prefix = 'the data mover could not be started again: ';
    return unlessSeenDone(facts, () => decideRefused(pod, refusal, facts, prefix));
  }
  // Stopped by a signal from outside, such as an eviction or a shutdown of the node.
  if (message === '' || message.endsWith(CANCELED_SUFFIX)) return again(deathOf(pod));
  if (message.endsWith(FENCED_SUFFIX)) return again(message);
  // This mover did nothing. The next mover waits for the mount, or reports that the pod is gone.
  if (message.endsWith(NOT_MOUNTED_SUFFIX)) return again(message);
  // The work may have been finished by an earlier mover.
  return unlessSeenDone(facts, () => fail(`data path ${direction.moves} failed: ${message}`));
}

const hasEndedWithoutResult = (pod: Pod): boolean =>
  isOver(pod) && !parseResult(terminationOf(pod) ?? '');

/** Undefined for failures, which are sentences. */
function parseResult(message: string): MoverResult | undefined {
  if (!message.startsWith('{')) return undefined;
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return undefined;
  }
}
