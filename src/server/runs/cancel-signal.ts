import { isCode } from '../../base/index.ts';

/** Time limit for canceling all operations of a run, perhaps thousands. Our choice. */
const STOPPING_MS = 5 * 60_000;

/** Whether another server continues the run that ended with this error. */
export function isLeft(error: unknown, signal: AbortSignal): boolean {
  const reason = signal.reason as { readonly by?: unknown } | undefined;
  return isCode(error, 'LEADERSHIP_LOST') || (signal.aborted && reason?.by !== 'user');
}

/** For canceling operations. `leaving` is aborted when this process stops leading. */
export const endingSignal = (leaving: AbortSignal | undefined): AbortSignal =>
  AbortSignal.any([AbortSignal.timeout(STOPPING_MS), ...(leaving ? [leaving] : [])]);
