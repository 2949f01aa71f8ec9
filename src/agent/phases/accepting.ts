import { hasFinalizer, isCancelWanted, type Movement } from '../movement.ts';
import { type Action, fail, read, wait } from './action.ts';

/** `unread` as long as nothing asked for it. */
export type TargetFact = 'unread' | 'there' | 'missing';

export interface AcceptingFacts {
  readonly movement: Movement;
  /** Milliseconds until it is this agent's turn. */
  readonly turnInMs: number;
  /** What is wrong with the spec. */
  readonly problem: string | undefined;
  /** This agent has a place for another volume that is made available. */
  readonly hasPlace: boolean;
  /** So many CRs are being exposed in the cluster, or wait on all nodes, that no other one is accepted. */
  readonly isQueueFull: boolean;
  /** What it is to be done to, such as the PVC that waits for its data. */
  readonly target: TargetFact;
  /** Milliseconds until this agent looks for the target. */
  readonly targetInMs: number;
}

/**
 * New: the agent whose turn it is claims. One that has to wait, or ends at once, has the finalizer first: what was made for
 * it before it came here must not be forgotten.
 */
export function decideAccepting(facts: AcceptingFacts): Action {
  const { movement, turnInMs } = facts;
  if (turnInMs > 0) return wait(turnInMs);
  const action = decideTurn(facts);
  if (hasFinalizer(movement) || action.do === 'read' || action.do === 'claim') return action;
  return { do: 'addFinalizer' };
}

function decideTurn(facts: AcceptingFacts): Action {
  const { movement, problem, hasPlace, isQueueFull, target, targetInMs } = facts;
  if (isCancelWanted(movement)) return { do: 'cancel' };
  if (problem !== undefined) return fail(problem);
  if (isQueueFull || !hasPlace) return { do: 'park' };
  if (target === 'there') return { do: 'claim' };
  return targetInMs > 0 ? wait(targetInMs) : read('target');
}
