import type { DoneBefore } from '../directions/direction.ts';
import { hasFinalizer, isCancelWanted, type Movement } from '../movement.ts';
import { type Action, fail, read, wait } from './action.ts';

/** `unread` as long as nothing asked for it. */
export type TargetFact =
  'unread' | 'there' | 'missing' | Elsewhere | { readonly never: string } | DoneBefore;

/**
 * Only the agent of that node may claim it: milliseconds until that one counts as away for good,
 * and this one may end it.
 */
export interface Elsewhere {
  readonly node: string;
  readonly awayInMs: number;
}

export interface AcceptingFacts {
  readonly movement: Movement;
  /** Milliseconds until it is this agent's turn. */
  readonly turnInMs: number;
  /** What is wrong with the spec. */
  readonly problem: string | undefined;
  /** This agent has a place for another volume that is made available. */
  readonly hasPlace: boolean;
  /**
   * So many CRs are being exposed in the cluster, or wait on all nodes, that no other one is
   * accepted.
   */
  readonly isQueueFull: boolean;
  /** Undefined where this agent may claim it, as far as the CR itself says. */
  readonly elsewhere: Elsewhere | undefined;
  /** What it is to be done to, such as the PVC that waits for its data. */
  readonly target: TargetFact;
  /**
   * Whether only one node can do it, which the target tells: those of other nodes must not stand in
   * line for a place here.
   */
  readonly looksFirst: boolean;
  /** Milliseconds until this agent looks for the target. */
  readonly targetInMs: number;
}

/**
 * New: the agent whose turn it is claims. One that has to wait, or ends at once, has the finalizer
 * first: what was made for it before it came here must not be forgotten.
 */
export function decideAccepting(facts: AcceptingFacts): Action {
  const { movement, turnInMs } = facts;
  if (turnInMs > 0) return wait(turnInMs);
  const action = decideTurn(facts);
  // That one puts it on when it comes to it.
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

/** To the agent of the node that the volume is on. */
function leaveTo({ node, awayInMs }: Elsewhere, laterMs = 0): Action {
  if (awayInMs > 0) return wait(Math.max(awayInMs, laterMs));
  return fail(
    `node ${node} has no node-agent that could read or write the volume: check that the DaemonSet runs there`,
  );
}
