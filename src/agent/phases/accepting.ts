import type { DoneBefore } from '../directions/direction.ts';
import { hasFinalizer, isCancelWanted, type Movement } from '../movement.ts';
import { type Action, fail, read, wait } from './action.ts';

/** `unread` until a decision needs it. */
export type TargetFact =
  'unread' | 'there' | 'missing' | Elsewhere | { readonly never: string } | DoneBefore;

/**
 * Only the agent of this node may claim the CR. `awayInMs`: milliseconds until that agent counts as
 * lost. Then this agent may fail the CR.
 */
export interface Elsewhere {
  readonly node: string;
  readonly awayInMs: number;
}

export interface AcceptingFacts {
  readonly movement: Movement;
  readonly turnInMs: number;
  readonly problem: string | undefined;
  /** This agent has a free place for another exposure. */
  readonly hasPlace: boolean;
  /** Too many CRs are being exposed in the cluster, or wait on all nodes. */
  readonly isQueueFull: boolean;
  /** Undefined if this agent may claim it, according to the CR alone. */
  readonly elsewhere: Elsewhere | undefined;
  /** State of the source or target, such as the PVC that waits for its data. */
  readonly target: TargetFact;
  /** Whether the target decides the node. CRs of other nodes must not queue for a place here. */
  readonly looksFirst: boolean;
  /** Milliseconds until this agent looks for the target. */
  readonly targetInMs: number;
}

/**
 * New: the agent whose turn it is claims the CR. A CR that waits or ends at once gets the finalizer
 * first, because objects may exist for it from before.
 */
export function decideAccepting(facts: AcceptingFacts): Action {
  const { movement, turnInMs } = facts;
  if (turnInMs > 0) return wait(turnInMs);
  const action = decideTurn(facts);
  // The other node's agent adds the finalizer when it needs to.
  if (facts.elsewhere && action.do === 'wait') return action;
  if (hasFinalizer(movement) || action.do === 'read' || action.do === 'claim') return action;
  return { do: 'addFinalizer' };
}

function decideTurn(facts: AcceptingFacts): Action {
  const { movement, problem, elsewhere, target, targetInMs } = facts;
  if (isCancelWanted(movement)) return { do: 'cancel' };
  if (problem !== undefined) return fail(problem);
  if (elsewhere) return leaveTo(elsewhere);
  if (typeof target === 'object') {
    if ('never' in target) return fail(target.never);
    if ('doneBy' in target) return { do: 'completeAs', done: target };
    return leaveTo(target, targetInMs);
  }
  const look = targetInMs > 0 ? wait(targetInMs) : read('target');
  if (facts.looksFirst && target !== 'there') return look;
  if (facts.isQueueFull || !facts.hasPlace) return { do: 'park' };
  return target === 'there' ? { do: 'claim' } : look;
}

/** Leaves the CR to the agent of the volume's node. */
function leaveTo({ node, awayInMs }: Elsewhere, laterMs = 0): Action {
  if (awayInMs > 0) return wait(Math.max(awayInMs, laterMs));
  return fail(
    `node ${node} has no node-agent that could read or write the volume: check that the DaemonSet runs there`,
  );
}
