import { deathOf as deathOfPod } from '../../exposer/index.ts';
import { isPodOver, type Pod } from '../../kube/index.ts';
import type { DoneBefore, MoverResult } from '../directions/direction.ts';

export type ReadWhat = 'pod' | 'latest' | 'target' | 'writer' | 'lost' | 'seenDone' | 'told';

/** The next step for a CR. Decisions are pure and return an action; the executor carries it out. */
export type Action =
  /** Wait for a change, or for this time. */
  | { readonly do: 'wait'; readonly ms?: number }
  /** Wait for a free place. */
  | { readonly do: 'park' }
  /** Read a missing fact, then decide again. */
  | { readonly do: 'read'; readonly what: ReadWhat }
  /** The CR belongs to a different agent; only check that the agent is alive. */
  | { readonly do: 'watchOver' }
  | { readonly do: 'addFinalizer' }
  | { readonly do: 'claim' }
  | { readonly do: 'expose' }
  | { readonly do: 'abortExposure' }
  /** Exposing failed for a reason that may pass. */
  | { readonly do: 'forgetExposure'; readonly error: unknown }
  | { readonly do: 'setPrepared' }
  | { readonly do: 'start'; readonly pod: Pod }
  /** The mover runs on this node, so this node's agent becomes the owner. */
  | { readonly do: 'takeOver'; readonly pod: Pod }
  /** Name the mover that may write from now on. */
  | { readonly do: 'name'; readonly pod: Pod }
  /** Count a death. The old mover may no longer write. */
  | { readonly do: 'countDeath'; readonly pod: Pod | undefined; readonly reason: string }
  /** The node refused the pod. A new pod is needed, but no mover died. */
  | { readonly do: 'noteRefusal'; readonly pod: Pod; readonly reason: string }
  /** Recreate the pod of a dead mover. */
  | { readonly do: 'replace'; readonly pod: Pod | undefined }
  /** The old mover may still write. Report to the users why the CR waits. */
  | { readonly do: 'waitForWriter'; readonly message: string; readonly ms: number }
  /** The replacement pod exists. */
  | { readonly do: 'restarted' }
  /** Ask the mover to stop. */
  | { readonly do: 'setCanceling' }
  | { readonly do: 'killPod'; readonly pod: Pod }
  /** Delete the pod object although its node has not confirmed the end. */
  | { readonly do: 'dropPod'; readonly pod: Pod }
  | { readonly do: 'complete'; readonly result: MoverResult }
  | { readonly do: 'completeAs'; readonly done: DoneBefore }
  | { readonly do: 'cancel' }
  | { readonly do: 'fail'; readonly message: string }
  /** Append the reason why the pod does not run. */
  | { readonly do: 'failDiagnosed'; readonly message: string };

/** How often to check for missed events; watches deliver everything else. */
export const LOOK_MS = 5000;
/** A working kubelet has stopped a pod well before this. */
export const OVERDUE_MS = 60_000;

export const wait = (ms?: number): Action =>
  ms === undefined ? { do: 'wait' } : { do: 'wait', ms };
export const read = (what: ReadWhat): Action => ({ do: 'read', what });
export const fail = (message: string): Action => ({ do: 'fail', message });

/** The hosting pod: `unread` until a decision needs it, `none` if there is none. */
export type PodFact = Pod | 'unread' | 'none';

/**
 * Why the move cannot succeed; `unread` until a decision needs it. `isSure`: an earlier check found
 * the same. A mover that had finished by then would have reported it.
 */
export type LostFact = { readonly reason: string; readonly isSure: boolean } | 'unread' | undefined;

export const isOver = ({ status }: Pod): boolean => isPodOver(status?.phase);

export const isRunning = (pod: Pod | undefined): pod is Pod => pod?.status?.phase === 'Running';

/** How a data mover ended, if it reported nothing. */
export const deathOf = (pod: Pod | undefined): string =>
  pod ? deathOfPod(pod) : 'its pod is gone';
