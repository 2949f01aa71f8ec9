import { isCode } from '../../base/index.ts';

/** How long it may take to tell operations to stop, of which there may be thousands. Our choice. */
const STOPPING_MS = 5 * 60_000;

/** Of a run that threw: whether another server goes on with what was begun. */
export function isLeft(error: unknown, signal: AbortSignal): boolean {
  const reason = signal.reason as { readonly by?: unknown } | undefined;
  return isCode(error, 'LEADERSHIP_LOST') || (signal.aborted && reason?.by !== 'user');
}

/** For telling operations of a run to stop; `leaving`: of the process's turn. */
export const endingSignal = (leaving: AbortSignal | undefined): AbortSignal =>
  AbortSignal.any([AbortSignal.timeout(STOPPING_MS), ...(leaving ? [leaving] : [])]);
