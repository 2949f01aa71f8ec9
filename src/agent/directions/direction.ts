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
  readonly source?: { readonly byPath?: string | undefined } | undefined;
}

/** What uploads and downloads do differently; the phases are one. */
export interface Direction<M extends Movement> {
  readonly name: 'upload' | 'download';
  readonly resource: Resource<M>;
  /** As Velero's messages name it. */
  readonly noun: string;
  /** The CR that a hosting pod is for. */
  hostedName(pod: Pod): string | undefined;
  /** Undefined when it may be accepted; else what it waits for. */
  waitsFor(movement: M): Promise<string | undefined>;
  /** What is wrong with its spec, in words. */
  problemOf(movement: M): string | undefined;
  expose(movement: M, context: ExposeContext): Promise<void>;
  waitUsable(movement: M, context: ExposeContext): Promise<void>;
  startAgain(movement: M, context: ExposeContext): Promise<void>;
  diagnose(movement: M): Promise<string>;
  /** The volumes that were made for it, as its claims name them. */
  volumesOf(movement: M): Promise<string[]>;
  /** True when nothing is left. `isBare`: nothing was made for it, as far as this process knows, which claimed it. */
  cleanUp(movement: M, isBare?: boolean): Promise<boolean>;
  /** After a crash in the midst of {@link complete}: the data is moved, only that is left to do. */
  isCompleting(movement: M): boolean;
  /** What is missing in what the mover said at its end; undefined when nothing is. */
  lacks(result: MoverResult): string | undefined;
  /** The last step before `Completed`; what it returns goes into the status. */
  complete(movement: M, result: MoverResult, context: ExposeContext): Promise<object>;
}

/** What is wrong with a duration of a spec; undefined when it can be read. */
export const durationProblem = (text: string): string | undefined =>
  parseDuration(text) === undefined
    ? `spec.operationTimeout "${text}" is not a duration such as 10m0s`
    : undefined;
