import { CodedError, isCanceled, isCode } from '../../base/index.ts';

/** What the API server answers beside success (metav1.Status). */
export interface Status {
  kind?: string;
  reason?: string;
  message?: string;
  code?: number;
  details?: { retryAfterSeconds?: number };
  metadata?: { continue?: string };
}

/**
 * Codes of what the API server refuses; the reason tells conflicts from things that are there
 * already (both 409).
 */
function codeOf(httpStatus: number, reason: string | undefined): string {
  switch (httpStatus) {
    case 401:
      return 'KUBE_UNAUTHORIZED';
    case 403:
      return 'KUBE_FORBIDDEN';
    case 404:
      return 'KUBE_NOT_FOUND';
    case 409:
      return reason === 'AlreadyExists' ? 'KUBE_ALREADY_EXISTS' : 'KUBE_CONFLICT';
    case 410:
      return 'KUBE_GONE';
    case 422:
      return 'KUBE_INVALID';
    case 429:
      return 'KUBE_THROTTLED';
    default:
      return httpStatus >= 500 ? 'KUBE_UNAVAILABLE' : 'KUBE_REFUSED';
  }
}

const PASSING = new Set(['KUBE_THROTTLED', 'KUBE_UNAVAILABLE', 'KUBE_CONFLICT', 'KUBE_GONE']);

/** An answer of the API server that says nothing about the thing in question. */
export const isPassingAnswer = (error: unknown): boolean => isCode(error, ...PASSING);

/**
 * The API server was away or busy, somebody else was first, or it was canceled: nothing is wrong
 * with the object.
 */
export const isPassing = (error: unknown): boolean => isCanceled(error) || isPassingAnswer(error);

/**
 * For whoever reports an error as something that is wrong with an object. An API server that is
 * away says nothing about the object, so that whoever asked tries again. Throws errors that pass,
 * and the reason of the signal.
 */
export function assertLasting(error: unknown, signal?: AbortSignal): void {
  signal?.throwIfAborted();
  if (isPassing(error)) throw error;
}

/**
 * An answer of the API server as an error. `retryAfterMs` is a fact where the server asked for a
 * pause, `continue` where it offers to go on with a list whose version is gone, with the newest
 * one.
 */
export function kubeError(
  what: string,
  httpStatus: number,
  status: Status | undefined,
  retryAfterSeconds?: number,
): CodedError {
  const code = codeOf(httpStatus, status?.reason);
  const seconds = status?.details?.retryAfterSeconds ?? retryAfterSeconds;
  return new CodedError(code, `${what}: ${status?.message ?? `HTTP status ${httpStatus}`}`, {
    retry: PASSING.has(code) ? 'backoff' : 'never',
    facts: {
      httpStatus,
      ...(seconds && { retryAfterMs: seconds * 1000 }),
      ...(code === 'KUBE_GONE' &&
        status?.metadata?.continue && { continue: status.metadata.continue }),
    },
  });
}

/**
 * The API server was not reached, or the connection broke. `isSent`: the request may have arrived,
 * so that nobody knows whether it was done; a fact of the error then.
 */
export function unreachable(what: string, cause: unknown, isSent = false): CodedError {
  const text = cause instanceof Error ? cause.message : String(cause);
  const message = `${what}: cannot reach the API server: ${text}`;
  const facts = isSent ? { isSent } : {};
  return new CodedError('KUBE_UNAVAILABLE', message, { cause, retry: 'backoff', facts });
}
