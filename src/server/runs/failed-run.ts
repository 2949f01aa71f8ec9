import type { BackupLog } from '../../backup/index.ts';
import { isCode, type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import type { RunRequest } from '../backups/contract.ts';
import type { RunKind } from './run-kind.ts';

/** Time limit for canceling all operations of a run, perhaps thousands. Our choice. */
const STOPPING_MS = 5 * 60_000;

/** Time limit for storing the files of a failed or canceled run. Our choice. */
const FAREWELL_MS = 60_000;
const CANCELED_MS = 4000;

/** Whether another server continues the run that ended with this error. */
export function isLeft(error: unknown, signal: AbortSignal): boolean {
  const reason = signal.reason as { readonly by?: unknown } | undefined;
  return isCode(error, 'LEADERSHIP_LOST') || (signal.aborted && reason?.by !== 'user');
}

/** For canceling operations. `leaving` is aborted when this process stops leading. */
export const endingSignal = (leaving: AbortSignal | undefined): AbortSignal =>
  AbortSignal.any([AbortSignal.timeout(STOPPING_MS), ...(leaving ? [leaving] : [])]);

/** A sentence for the `failureReason`. */
export const notTold = (why: string): string =>
  `its operations could not be told to stop, and may go on: ${redactAndCut(why)}`;

export interface FailedRun {
  readonly word: RunKind<never>['word'];
  readonly name: string;
  /** Why the run has failed: its error, or the reason of the signal. Called after `cancel`. */
  readonly reasonOf: () => unknown;
  readonly log: Pick<BackupLog, 'error'>;
  readonly logger: Logger;
  readonly request: Pick<RunRequest, 'signal' | 'leaving' | 'onUntold'>;
  /** Cancels the operations of the run. `tell` gets a sentence about the rest. */
  readonly cancel: (stopping: AbortSignal, tell: (untold: string) => void) => Promise<void>;
  /** Stores the files, so that users see the reason. */
  readonly store: (late: AbortSignal, untold: string | undefined) => Promise<void>;
  readonly onUnstored?: (() => void) | undefined;
}

/** Cancels the operations of a failed run, then stores its log and results. */
export async function endFailedRun(run: FailedRun): Promise<void> {
  const { word, name, reasonOf, log, logger } = run;
  const { signal, leaving, onUntold } = run.request;
  const warn = (error: unknown, text: string): void => {
    logger.warn({ [word]: name, error: messageOf(error) }, text);
  };
  let untold: string | undefined;
  try {
    await run.cancel(endingSignal(leaving), (text) => (untold = text));
  } catch (error) {
    warn(error, `operations of a ${word} that has failed could not be told to stop`);
    untold ??= notTold(messageOf(error));
  }
  // The next server cancels the rest. Files that say `Failed` would prevent that.
  if (leaving?.aborted === true) return;
  if (untold !== undefined) {
    log.error(untold);
    onUntold?.(untold);
  }
  log.error(`${word} failed`, { error: reasonOf() });
  try {
    await run.store(AbortSignal.timeout(signal.aborted ? CANCELED_MS : FAREWELL_MS), untold);
  } catch (error) {
    warn(error, `the log of a ${word} that has failed could not be stored`);
    run.onUnstored?.();
  }
}
