import { terminationOf, unrecoverable } from '../../exposer/index.ts';
import type { Pod } from '../../kube/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import { FENCED_SUFFIX } from '../fence.ts';
import { isCancelWanted, isCounted, type Movement, phaseOf } from '../movement.ts';
import type { NamedMover } from '../named-mover.ts';
import type { ExposureState } from '../tracked.ts';
import {
  type Action,
  deathOf,
  fail,
  isOver,
  isRunning,
  LOOK_MS,
  OVERDUE_MS,
  type PodFact,
  read,
  wait,
} from './action.ts';
import { decideCanceled, decideRestarting, isLate, type Patience } from './preparing.ts';

export interface MovingFacts extends Patience {
  readonly movement: Movement;
  readonly node: string;
  readonly direction: {
    readonly name: 'upload' | 'download';
    /** What is missing in what the mover said at its end; undefined when nothing is. */
    lacks(result: MoverResult): string | undefined;
  };
  readonly local: Pod | undefined;
  readonly pod: PodFact;
  /** Of the new pod of a mover that died. */
  readonly exposure: ExposureState | undefined;
  /** The data is moved, only the last step is left to do. */
  readonly isCompleting: boolean;
  readonly stalledMs: number;
  readonly stallTimeoutMs: number;
  readonly podAgeMs: number;
  /** Milliseconds since the mover was told to stop. */
  readonly cancelingMs: () => number;
  /** The mover that may write, as the CR says. */
  readonly mover: NamedMover | undefined;
  /** Whether the process of a pod that is gone can still write: its node may be cut off from the API server only. */
  readonly writer: WriterFact;
  /** Milliseconds until a mover that is cut off has stopped by itself, since none is named. */
  readonly fenceInMs: number;
  /** Milliseconds since the pod should have ended. */
  readonly overdueMs: number;
}

/** `unread` as long as nothing asked for it. */
export type WriterFact = 'unread' | 'ended' | 'unknown';

/** As {@link OVERDUE_MS}; by then a node that is lost has lost its volumes too. */
const LOST_MS = 360_000;
/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const CANCELED_SUFFIX = 'data path is canceled';

/** InProgress and Canceling: the pod decides how it ends. */
export function decideMoving(facts: MovingFacts): Action {
  const { movement, node, local, pod, exposure } = facts;
  if (movement.status?.node !== node) {
    return isRunning(local) ? { do: 'takeOver', pod: local } : { do: 'watchOver' };
  }
  if (facts.isCompleting) return { do: 'complete', result: {} };
  if (exposure !== undefined) {
    return isCancelWanted(movement) ? decideCanceled(exposure) : decideRestarting(exposure, facts);
  }
  if (pod === 'unread') return read('pod');
  if (pod !== 'none' && isOver(pod)) return decideEnded(facts, pod);
  if (isCancelWanted(movement)) return decideCanceling(facts, pod);
  if (pod === 'none') return decideGone(facts);
  if (facts.overdueMs > OVERDUE_MS) return decideOverdue(facts, pod);
  if (isRunning(pod) && !pod.metadata.deletionTimestamp && facts.mover?.pod !== pod.metadata.uid) {
    return { do: 'name', pod };
  }
  if (facts.stalledMs > facts.stallTimeoutMs) {
    const minutes = Math.round(facts.stallTimeoutMs / 60_000);
    return fail(`no progress for ${minutes} min: the data mover, the volume or the storage hangs`);
  }
  if (!isRunning(pod)) {
    const broken = unrecoverable(pod);
    const message = 'the data mover could not be started again: ';
    if (broken !== undefined) return fail(message + broken);
    if (isLate(facts.podAgeMs, facts)) return { do: 'failDiagnosed', message };
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

/** The pod is gone without a word: its mover may be, or it may be cut off and write on. */
function decideGone(facts: MovingFacts): Action {
  const { movement, direction, mover, writer, fenceInMs } = facts;
  // Counting a death takes the name away: one that is named is another one than was counted last.
  const isNamed = mover !== undefined && mover.pod !== '';
  if (isNamed || !isCounted(movement, undefined)) {
    return { do: 'countDeath', pod: undefined, reason: deathOf(undefined) };
  }
  // Two that read one snapshot do no harm, and one that never was named has not written.
  if (direction.name === 'upload' || !mover) return { do: 'replace', pod: undefined };
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

/** The node does not end the pod: it is lost, or cut off. */
function decideOverdue(facts: MovingFacts, pod: Pod): Action {
  const node = pod.spec.nodeName ?? '';
  if (wasNeverNamed(pod, facts.mover)) return { do: 'dropPod', pod };
  if (facts.direction.name === 'upload' && facts.overdueMs > LOST_MS) return { do: 'dropPod', pod };
  if (facts.stalledMs > facts.stallTimeoutMs) {
    return fail(
      `node ${node} is lost and its data mover may still be writing, so no other data mover was started`,
    );
  }
  return {
    do: 'waitForWriter',
    message: `node ${node} does not stop the data mover, which may still be writing: if the node is gone for good, delete it or give it the taint node.kubernetes.io/out-of-service`,
    ms: LOOK_MS,
  };
}

/** The pod has ended: its termination message is the outcome, and a pod without one died. */
function decideEnded({ movement, direction, mover }: MovingFacts, pod: Pod): Action {
  // Only the one that is named can tell how it ended; another one was never to begin.
  const isNamed = mover === undefined || mover.pod === pod.metadata.uid;
  const message = isNamed ? (terminationOf(pod) ?? '') : '';
  const again = (reason: string): Action =>
    isCounted(movement, pod) ? { do: 'replace', pod } : { do: 'countDeath', pod, reason };
  // A mover that said its result was done, also when it was killed before it could end well.
  const result = parseResult(message);
  if (result || (isNamed && pod.status?.phase === 'Succeeded')) {
    // Whatever it did, nobody could find it again: it is done once more, and finds what is stored.
    const missing = result ? direction.lacks(result) : 'it did not say what it had done';
    if (missing !== undefined) return again(missing);
    return { do: 'complete', result: result ?? {} };
  }
  if (isCancelWanted(movement)) return { do: 'cancel' };
  // Stopped by a signal, not by us: a node that shuts down, an eviction.
  if (message === '' || message.endsWith(CANCELED_SUFFIX)) return again(deathOf(pod));
  if (message.endsWith(FENCED_SUFFIX)) return again(message);
  const verb = direction.name === 'upload' ? 'backup' : 'restore';
  return fail(`data path ${verb} failed: ${message}`);
}

/** Undefined for what is no result: failures are sentences. */
function parseResult(message: string): MoverResult | undefined {
  if (!message.startsWith('{')) return undefined;
  try {
    return JSON.parse(message) as MoverResult;
  } catch {
    return undefined;
  }
}
