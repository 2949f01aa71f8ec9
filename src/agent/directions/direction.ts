import { parseDuration } from '../../base/index.ts';
import type { ExposeContext } from '../../exposer/index.ts';
import type { Pod, Resource } from '../../kube/index.ts';
import type { Movement } from '../movement.ts';

/** Result of a data mover that succeeded. */
export interface MoverResult {
  readonly snapshotID?: string | undefined;
  readonly totalBytes?: number | undefined;
  readonly incrementalBytes?: number | undefined;
  readonly emptySnapshot?: boolean | undefined;
  /** Unreadable entries that were skipped, as configured. Velero's movers do not report it. */
  readonly unreadable?: number | undefined;
  /** Excluded paths, or attributes not restored. Only Longshore's movers report it. */
  readonly note?: string | undefined;
  readonly source?: { readonly byPath?: string | undefined } | undefined;
}

/** Each direction has its own queue for exposures, and metrics under its name. */
export const DIRECTIONS = [
  'upload',
  'download',
  'pod-volume-backup',
  'pod-volume-restore',
] as const;
export type DirectionName = (typeof DIRECTIONS)[number];

/** Why this agent does not claim a CR in `New`. */
export type Hindrance =
  /** The missing condition. `isHere`: it is on this node, so only this agent may claim. */
  | { readonly waitsFor: string; readonly isHere?: boolean }
  /** Only the agent of this node may claim it. */
  | { readonly node: string }
  /** The CR can never succeed, for this reason. */
  | { readonly never: string }
  | DoneBefore;

/** The work was already done for another CR. */
export interface DoneBefore {
  /** The other CR, in words. */
  readonly doneBy: string;
  readonly totalBytes: number;
}

/** The differences between kinds of CRs. All have the same phases. */
export interface Direction<M extends Movement> {
  readonly name: DirectionName;
  readonly moves: 'backup' | 'restore';
  readonly resource: Resource<M>;
  /** The name in Velero's messages. */
  readonly noun: string;
  /** The name in Velero's message about a deletion. */
  readonly shortNoun: string;
  /** Name of the hosting pod's CR. */
  hostedName(pod: Pod): string | undefined;
  /** The only node whose agent may claim the CR; undefined if any agent may. */
  homeOf(movement: M): string | undefined;
  /** Whether {@link hindranceOf} starts with this agent's watches, and is mostly free. */
  readonly isCheapToLook: boolean;
  /** Undefined if this agent may accept the CR. */
  hindranceOf(movement: M): Promise<Hindrance | undefined>;
  /** The problem with its spec, in words. */
  problemOf(movement: M): string | undefined;
  expose(movement: M, context: ExposeContext): Promise<void>;
  waitUsable(movement: M, context: ExposeContext): Promise<void>;
  startAgain(movement: M, context: ExposeContext): Promise<void>;
  diagnose(movement: M): Promise<string>;
  /** The volumes created for it, as named by its claims. */
  volumesOf(movement: M): Promise<string[]>;
  /** True if all objects are gone. May throw. `isBare`: this process knows of no objects. */
  cleanUp(movement: M, isBare?: boolean): Promise<boolean>;
  /** Whether {@link cleanUp} waits for the mover's end, so its pod is not force-deleted. */
  isEndAwaited?(movement: M): boolean;
  /** Addition to a failure message: the state of the user's volume. */
  failNote?(movement: M, message: string): string;
  /**
   * Why the move must fail even if its mover is healthy: its source or target is gone. Undefined if
   * both exist.
   */
  lostReason?(movement: M, signal: AbortSignal): Promise<string | undefined>;
  /** Whether the waiting pod has its data. Then a mover's result is not needed. */
  isSeenDone?(movement: M, signal: AbortSignal): Promise<boolean>;
  /** True after a crash during {@link complete}: the data is moved, and only that step is left. */
  isCompleting(movement: M): boolean;
  /** The missing part of a mover's result; undefined if complete. */
  lacks(result: MoverResult): string | undefined;
  /** The last step before `Completed`. Returns fields for the status. */
  complete(movement: M, result: MoverResult, context: ExposeContext): Promise<object>;
}

/** Status message of a backup with skipped entries: it is `Completed`, but users should know. */
export function leftOutNote({ unreadable = 0, note }: MoverResult): { message?: string } {
  const texts = note === undefined ? [] : [note];
  if (unreadable > 0) {
    texts.unshift(
      `${unreadable} ${unreadable === 1 ? 'entry' : 'entries'} that could not be read ${unreadable === 1 ? 'is' : 'are'} not in this backup, as configured (ignoreUnreadable)`,
    );
  }
  return texts.length > 0 ? { message: texts.join('; ') } : {};
}

/** The problem with a duration in a spec; undefined if it is valid. */
export const durationProblem = (text: string): string | undefined =>
  parseDuration(text) === undefined
    ? `spec.operationTimeout "${text}" is not a duration such as 10m0s`
    : undefined;
