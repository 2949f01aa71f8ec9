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
  /** So many CRs are being exposed in the cluster that no other one is accepted. */
  readonly isQueueFull: boolean;
  /** What it is to be done to, such as the PVC that waits for its data. */
  readonly target: TargetFact;
}

const CONSTRAINED_MS = 5000;
const WAITING_MS = 1000;

/** New: the agent whose turn it is writes the finalizer, then claims. */
export function decideAccepting(facts: AcceptingFacts): Action {
  const { movement, turnInMs, problem, isQueueFull, target } = facts;
  if (turnInMs > 0) return wait(turnInMs);
  if (!hasFinalizer(movement)) return { do: 'addFinalizer' };
  if (isCancelWanted(movement)) return { do: 'cancel' };
  if (problem !== undefined) return fail(problem);
  if (isQueueFull) return wait(CONSTRAINED_MS);
  if (target === 'unread') return read('target');
  if (target === 'missing') return wait(WAITING_MS);
  return { do: 'claim' };
}
