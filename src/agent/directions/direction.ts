import { parseDuration } from '../../base/index.ts';
import type { ExposeContext } from '../../exposer/index.ts';
import type { Pod, Resource } from '../../kube/index.ts';
import type { Movement } from '../movement.ts';

/** What the data mover said when it ended well. */
export interface MoverResult {
  readonly snapshotID?: string | undefined;
  readonly totalBytes?: number | undefined;
  readonly incrementalBytes?: number | undefined;
  readonly emptySnapshot?: boolean | undefined;
  /**
   * Entries that could not be read and were left out, as was asked for; Velero's movers do not say
   * it.
   */
  readonly unreadable?: number | undefined;
  /**
   * What rules left out of a backup, or attributes that a restore could not set; only our movers
   * say it.
   */
  readonly note?: string | undefined;
  readonly source?: { readonly byPath?: string | undefined } | undefined;
}

/** Each has a line of its own for what is made available, and metrics under its name. */
export const DIRECTIONS = [
  'upload',
  'download',
  'pod-volume-backup',
  'pod-volume-restore',
] as const;
export type DirectionName = (typeof DIRECTIONS)[number];

/** Why a CR in `New` is not claimed here. */
export type Hindrance =
  /**
   * What it waits for, in words. `isHere`: that is on this agent's node, so that only this one may
   * claim it.
   */
  | { readonly waitsFor: string; readonly isHere?: boolean }
  /** Only the agent of this node may claim it. */
  | { readonly node: string }
  /** It will never be done, and why. */
  | { readonly never: string }
  | DoneBefore;

/** What it asks for has been done for another CR. */
export interface DoneBefore {
  /** By what, in words. */
  readonly doneBy: string;
  readonly totalBytes: number;
}

/** What the kinds of CRs do differently; the phases are one. */
export interface Direction<M extends Movement> {
  readonly name: DirectionName;
  readonly moves: 'backup' | 'restore';
  readonly resource: Resource<M>;
  /** As Velero's messages name it. */
  readonly noun: string;
  /** As Velero's messages say that one of them is being deleted. */
  readonly shortNoun: string;
  /** The CR that a hosting pod is for. */
  hostedName(pod: Pod): string | undefined;
  /**
   * The node whose agent alone may claim it, as the CR itself says; undefined where any agent may.
   */
  homeOf(movement: M): string | undefined;
  /**
   * Whether {@link hindranceOf} asks this agent's own watches first, so that looking costs nothing
   * on most nodes.
   */
  readonly isCheapToLook: boolean;
  /** Undefined when it may be accepted here. */
  hindranceOf(movement: M): Promise<Hindrance | undefined>;
  /** What is wrong with its spec, in words. */
  problemOf(movement: M): string | undefined;
  expose(movement: M, context: ExposeContext): Promise<void>;
  waitUsable(movement: M, context: ExposeContext): Promise<void>;
  startAgain(movement: M, context: ExposeContext): Promise<void>;
  diagnose(movement: M): Promise<string>;
  /** The volumes that were made for it, as its claims name them. */
  volumesOf(movement: M): Promise<string[]>;
  /**
   * True when nothing is left. May throw where that cannot be told. `isBare`: nothing was made for
   * it, as far as this process knows, which claimed it.
   */
  cleanUp(movement: M, isBare?: boolean): Promise<boolean>;
  /**
   * Whether {@link cleanUp} waits until its mover has ended: then its pod is not deleted by force
   * before.
   */
  isEndAwaited?(movement: M): boolean;
  /** What is added to the message of its failure: in what state it leaves what its users have. */
  failNote?(movement: M, message: string): string;
  /**
   * Why it cannot be moved any more, whatever its mover does: what it is to be done to is gone.
   * Undefined while it can.
   */
  lostReason?(movement: M, signal: AbortSignal): Promise<string | undefined>;
  /**
   * Whether who waited for its data has seen that they are there: it is done then, though its mover
   * could not say so.
   */
  isSeenDone?(movement: M, signal: AbortSignal): Promise<boolean>;
  /** After a crash in the midst of {@link complete}: the data is moved, only that is left to do. */
  isCompleting(movement: M): boolean;
  /** What is missing in what the mover said at its end; undefined when nothing is. */
  lacks(result: MoverResult): string | undefined;
  /** The last step before `Completed`; what it returns goes into the status. */
  complete(movement: M, result: MoverResult, context: ExposeContext): Promise<object>;
}

/**
 * The status of a backup that lacks something, as was asked for: its users are told, though it is
 * `Completed`.
 */
export function leftOutNote({ unreadable = 0, note }: MoverResult): { message?: string } {
  const texts = note === undefined ? [] : [note];
  if (unreadable > 0) {
    texts.unshift(
      `${unreadable} ${unreadable === 1 ? 'entry' : 'entries'} that could not be read ${unreadable === 1 ? 'is' : 'are'} not in this backup, as configured (ignoreUnreadable)`,
    );
  }
  return texts.length > 0 ? { message: texts.join('; ') } : {};
}

/** What is wrong with a duration of a spec; undefined when it can be read. */
export const durationProblem = (text: string): string | undefined =>
  parseDuration(text) === undefined
    ? `spec.operationTimeout "${text}" is not a duration such as 10m0s`
    : undefined;
