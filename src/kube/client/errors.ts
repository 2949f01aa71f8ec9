import { CodedError, isCanceled, isCode } from '../../base/index.ts';

/** The body of an answer that is not a success (metav1.Status). */
export interface Status {
  kind?: string;
  reason?: string;
  message?: string;
  code?: number;
  details?: { retryAfterSeconds?: number };
  metadata?: { continue?: string };
}

/** Error codes of refusals. The reason separates conflicts from existing objects (both 409). */
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

/** A temporary answer of the API server, which says nothing about the object. */
export const isPassingAnswer = (error: unknown): boolean => isCode(error, ...PASSING);

/** A temporary answer of the API server, or a cancel. The object is not at fault. */
export const isPassing = (error: unknown): boolean => isCanceled(error) || isPassingAnswer(error);

/**
 * For callers that report an error as the fault of an object. Rethrows temporary errors so that the
 * caller retries, and throws the reason of the signal.
 */
export function assertLasting(error: unknown, signal?: AbortSignal): void {
  signal?.throwIfAborted();
  if (isPassing(error)) throw error;
}

/**
 * The object is too large for etcd or its client. The API server answers 500.
 * Source: etcd, api/v3rpc/rpctypes/error.go.
 */
const IS_TOO_LARGE = /etcdserver: request is too large|trying to send message larger than max/;
const TOO_LARGE_STATUS = 413;

/**
 * An answer of the API server as an error. The fact `retryAfterMs` is set if the server asked for a
 * pause. The fact `continue` is set if a list with an expired version can continue at the newest
 * one.
 */
export function kubeError(
  what: string,
  answered: number,
  status: Status | undefined,
  retryAfterSeconds?: number,
): CodedError {
  const isTooLarge = answered === 500 && IS_TOO_LARGE.test(status?.message ?? '');
  const httpStatus = isTooLarge ? TOO_LARGE_STATUS : answered;
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
 * The API server was not reached, or the connection broke. `isSent` becomes a fact of the error:
 * the request may have been executed.
 */
export function unreachable(what: string, cause: unknown, isSent = false): CodedError {
  const text = cause instanceof Error ? cause.message : String(cause);
  const message = `${what}: cannot reach the API server: ${text}`;
  const facts = isSent ? { isSent } : {};
  return new CodedError('KUBE_UNAVAILABLE', message, { cause, retry: 'backoff', facts });
}
