import { terminationOf, unrecoverable } from '../../exposer/index.ts';
import type { Pod } from '../../kube/index.ts';
import type { MoverResult } from '../directions/direction.ts';
import { isCancelWanted, type Movement, phaseOf } from '../movement.ts';
import type { ExposureState } from '../tracked.ts';
import {
  type Action,
  deathOf,
  fail,
  isOver,
  isRunning,
  LOOK_MS,
  type PodFact,
  read,
  wait,
} from './action.ts';
import { decideCanceled, decideRestarting } from './preparing.ts';

export interface MovingFacts {
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
  readonly prepareTimeoutMs: number;
  /** Milliseconds since the mover was told to stop. */
  readonly cancelingMs: () => number;
}

/** A mover that was asked to stop has this long to leave a checkpoint. */
const CANCEL_GRACE_MS = 30_000;
const CANCELED_SUFFIX = 'data path is canceled';

/** InProgress and Canceling: the pod decides how it ends. */
export function decideMoving(facts: MovingFacts): Action {
  const { movement, node, local, pod, exposure } = facts;
  if (movement.status?.node !== node) {
    return isRunning(local) ? { do: 'takeOver' } : { do: 'watchOver' };
  }
  if (facts.isCompleting) return { do: 'complete', result: {} };
  if (exposure !== undefined) {
    return isCancelWanted(movement) ? decideCanceled(exposure) : decideRestarting(exposure);
  }
  if (pod === 'unread') return read('pod');
  if (pod !== 'none' && isOver(pod)) return decideEnded(facts, pod);
  if (isCancelWanted(movement)) return decideCanceling(facts, pod);
  if (pod === 'none') return { do: 'restart', pod: undefined, reason: deathOf(undefined) };
  if (facts.stalledMs > facts.stallTimeoutMs) {
    const minutes = Math.round(facts.stallTimeoutMs / 60_000);
    return fail(`no progress for ${minutes} min: the data mover, the volume or the storage hangs`);
  }
  if (!isRunning(pod)) {
    const broken = unrecoverable(pod);
    const message = 'the data mover could not be started again: ';
    if (broken !== undefined) return fail(message + broken);
    if (facts.podAgeMs >= facts.prepareTimeoutMs) return { do: 'failDiagnosed', message };
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

/** The pod has ended: its termination message is the outcome, and a pod without one died. */
function decideEnded({ movement, direction }: MovingFacts, pod: Pod): Action {
  const message = terminationOf(pod) ?? '';
  // A mover that said its result was done, also when it was killed before it could end well.
  const result = parseResult(message);
  if (pod.status?.phase === 'Succeeded' || result) {
    // Whatever it did, nobody could find it again: it is done once more, and finds what is stored.
    const missing = result ? direction.lacks(result) : 'it did not say what it had done';
    if (missing !== undefined) return { do: 'restart', pod, reason: missing };
    return { do: 'complete', result: result ?? {} };
  }
  if (isCancelWanted(movement)) return { do: 'cancel' };
  // Stopped by a signal, not by us: a node that shuts down, an eviction.
  if (message === '' || message.endsWith(CANCELED_SUFFIX)) {
    return { do: 'restart', pod, reason: deathOf(pod) };
  }
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
