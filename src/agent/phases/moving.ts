import { refusalOf, terminationOf, unrecoverable } from '../../exposer/index.ts';
import type { Pod } from '../../kube/index.ts';
import { NOT_MOUNTED_SUFFIX } from '../../mover/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import { FENCED_SUFFIX } from '../fence.ts';
import { isCancelWanted, isCounted, type Movement, moverNodeOf, phaseOf } from '../movement.ts';
import type { NamedMover } from '../named-mover.ts';
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
    /** What is missing in what the mover said at its end; undefined when nothing is. */
    lacks(result: MoverResult): string | undefined;
  };
  readonly local: Pod | undefined;
  readonly pod: PodFact;
  /** Of the new pod of a mover that died. */
  readonly exposure: ExposureState | undefined;
  /** What the named mover said when it was done, before its pod tells the same. */
  readonly told: ToldFact;
  /** The data is moved, only the last step is left to do. */
  readonly isCompleting: boolean;
  readonly stalledMs: number;
  readonly stallTimeoutMs: number;
  readonly podAgeMs: number;
  /** Milliseconds since the mover was told to stop. */
  readonly cancelingMs: () => number;
  /** The mover that may write, as the CR says. */
  readonly mover: NamedMover | undefined;
  /**
   * Whether the process of a pod that is gone can still write: its node may be cut off from the API
   * server only.
   */
  readonly writer: WriterFact;
  /** Milliseconds until a mover that is cut off has stopped by itself, since none is named. */
  readonly fenceInMs: number;
  /** Milliseconds since the pod should have ended. */
  readonly overdueMs: number;
  /**
   * Why it cannot be moved any more, whatever the mover does; undefined while it can, as far as is
   * known.
   */
  readonly lost: LostFact;
  /**
   * Whether who waited for the data has seen that they are there; `unread` as long as nothing asked
   * for it.
   */
  readonly seenDone: boolean | 'unread';
}

/** `unread` as long as only the watch was asked, which may be behind. */
export type ToldFact = MoverResult | 'unread' | undefined;
/** `unread` as long as nothing asked for it. */
export type WriterFact = 'unread' | 'ended' | 'unknown';

/** As {@link OVERDUE_MS}; by then a node that is lost has lost its volumes too. */
const LOST_MS = 360_000;
/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const CANCELED_SUFFIX = 'data path is canceled';

/** InProgress and Canceling: the pod decides how it ends. */
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
    // What it said before it died counts.
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

/**
 * A mover that died after its last act has done what it was to do, and there may be no pod any more
 * to do it again for.
 */
function unlessSeenDone({ seenDone }: MovingFacts, otherwise: () => Action): Action {
  if (seenDone === 'unread') return read('seenDone');
  return seenDone ? { do: 'complete', result: {} } : otherwise();
}

/** The pod is gone without a word: its mover may be, or it may be cut off and write on. */
function decideGone(facts: MovingFacts): Action {
  const { movement, direction, mover, writer, fenceInMs } = facts;
  // Counting a death takes the name away: one that is named is another one than was counted last.
  const isNamed = mover !== undefined && mover.pod !== '';
  if (isNamed || !isCounted(movement, undefined)) {
    return unlessSeenDone(facts, () => ({
      do: 'countDeath',
      pod: undefined,
      reason: deathOf(undefined),
    }));
  }
  // Two that read one snapshot do no harm, and one that never was named has not written.
  if (direction.moves === 'backup' || !mover) return { do: 'replace', pod: undefined };
  if (writer === 'unread') return read('writer');
  if (writer === 'ended' || fenceInMs <= 0) return { do: 'replace', pod: undefined };
  return {
    do: 'waitForWriter',
    message: `the data mover's pod on node ${mover.node} is gone, but its process may still be running: waiting until it must have stopped by itself`,
    ms: Math.min(LOOK_MS, fenceInMs),
  };
}

/** Its mover has written nothing, and never will: movers begin when they are named. */
const wasNeverNamed = ({ metadata: { uid } }: Pod, mover: NamedMover | undefined): boolean =>
  mover !== undefined && mover.pod !== uid && mover.lastPod !== uid;

/** A mover that lives tells of itself soon after the API server takes writes again. */
const isStalled = ({ stalledMs, stallTimeoutMs, heardMs }: MovingFacts): boolean =>
  isLate(stalledMs, { prepareTimeoutMs: stallTimeoutMs, heardMs });

/** The node does not end the pod: it is lost, or cut off. */
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

/** The pod has ended: its termination message is the outcome, and a pod without one died. */
function decideEnded(facts: MovingFacts, pod: Pod): Action {
  const { movement, direction, mover } = facts;
  // Only the one that is named can tell how it ended; another one was never to begin.
  const isNamed = mover === undefined || mover.pod === pod.metadata.uid;
  const message = isNamed ? (terminationOf(pod) ?? '') : '';
  const again = (reason: string): Action =>
    unlessSeenDone(facts, () =>
      isCounted(movement, pod) ? { do: 'replace', pod } : { do: 'countDeath', pod, reason },
    );
  // A mover that said its result was done, also when it was killed before it could end well.
  const result = parseResult(message);
  if (result || (isNamed && pod.status?.phase === 'Succeeded')) {
    // Whatever it did, nobody could find it again: it is done once more, and finds what is stored.
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
  // Stopped by a signal, not by us: a node that shuts down, an eviction.
  if (message === '' || message.endsWith(CANCELED_SUFFIX)) return again(deathOf(pod));
  if (message.endsWith(FENCED_SUFFIX)) return again(message);
  // Nothing was read or written. The next one is made once the volume is mounted; where its pod is
  // gone, that is told instead.
  if (message.endsWith(NOT_MOUNTED_SUFFIX)) return again(message);
  // An earlier mover may have been done, and this one have come too late.
  return unlessSeenDone(facts, () => fail(`data path ${direction.moves} failed: ${message}`));
}

const hasEndedWithoutResult = (pod: Pod): boolean =>
  isOver(pod) && !parseResult(terminationOf(pod) ?? '');

/** Undefined for what is no result: failures are sentences. */
function parseResult(message: string): MoverResult | undefined {
  if (!message.startsWith('{')) return undefined;
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return undefined;
  }
}
