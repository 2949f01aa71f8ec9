import { deathOf as deathOfPod } from '../../exposer/index.ts';
import { isPodOver, type Pod } from '../../kube/index.ts';
import type { DoneBefore, MoverResult } from '../directions/direction.ts';

export type ReadWhat = 'pod' | 'latest' | 'target' | 'writer' | 'lost' | 'seenDone' | 'told';

/**
 * What is to be done about a CR next. Decisions are pure: they name it, and the executor does it.
 */
export type Action =
  /** Nothing, until something changes or the time is up. */
  | { readonly do: 'wait'; readonly ms?: number }
  /** Nothing, until there is a place for it. */
  | { readonly do: 'park' }
  /** A decision needs it: it is read, and decided again. */
  | { readonly do: 'read'; readonly what: ReadWhat }
  /** Another agent's: left alone while that one lives. */
  | { readonly do: 'watchOver' }
  | { readonly do: 'addFinalizer' }
  | { readonly do: 'claim' }
  | { readonly do: 'expose' }
  | { readonly do: 'abortExposure' }
  /** It failed for a reason that may pass. */
  | { readonly do: 'forgetExposure'; readonly error: unknown }
  | { readonly do: 'setPrepared' }
  | { readonly do: 'start'; readonly pod: Pod }
  /** The mover runs on this node: its agent goes on. */
  | { readonly do: 'takeOver'; readonly pod: Pod }
  /** It is the one that may write from here on. */
  | { readonly do: 'name'; readonly pod: Pod }
  /** From here on it is no mover any more that may write. */
  | { readonly do: 'countDeath'; readonly pod: Pod | undefined; readonly reason: string }
  /** Its node did not let the pod in: no mover has died, and another pod is to be made. */
  | { readonly do: 'noteRefusal'; readonly pod: Pod; readonly reason: string }
  /** A new pod is made in place of one that died. */
  | { readonly do: 'replace'; readonly pod: Pod | undefined }
  /** The old mover may write yet: its users are told what is waited for. */
  | { readonly do: 'waitForWriter'; readonly message: string; readonly ms: number }
  /** The new pod of a mover that died is made. */
  | { readonly do: 'restarted' }
  /** The mover is told to stop. */
  | { readonly do: 'setCanceling' }
  | { readonly do: 'killPod'; readonly pod: Pod }
  /** Its object goes, though its node does not say that it has ended. */
  | { readonly do: 'dropPod'; readonly pod: Pod }
  | { readonly do: 'complete'; readonly result: MoverResult }
  | { readonly do: 'completeAs'; readonly done: DoneBefore }
  | { readonly do: 'cancel' }
  | { readonly do: 'fail'; readonly message: string }
  /** What keeps the pod from running is found out, and put behind the message. */
  | { readonly do: 'failDiagnosed'; readonly message: string };

/** Looks at what an agent may have missed; watches deliver everything else. */
export const LOOK_MS = 5000;
/** A kubelet that lives has ended a pod well before. */
export const OVERDUE_MS = 60_000;

export const wait = (ms?: number): Action =>
  ms === undefined ? { do: 'wait' } : { do: 'wait', ms };
export const read = (what: ReadWhat): Action => ({ do: 'read', what });
export const fail = (message: string): Action => ({ do: 'fail', message });

/** A hosting pod: `unread` as long as nothing asked for it, `none` where there is none. */
export type PodFact = Pod | 'unread' | 'none';

/**
 * `unread` as long as nothing asked for it, where something is to ask. `isSure`: it was so a while
 * ago already, and a mover that was done by then has said so.
 */
export type LostFact = { readonly reason: string; readonly isSure: boolean } | 'unread' | undefined;

export const isOver = ({ status }: Pod): boolean => isPodOver(status?.phase);

export const isRunning = (pod: Pod | undefined): pod is Pod => pod?.status?.phase === 'Running';

/** How a data mover ended that did not say it. */
export const deathOf = (pod: Pod | undefined): string =>
  pod ? deathOfPod(pod) : 'its pod is gone';
