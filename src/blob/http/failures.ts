import { CodedError, lookup, messageOf, redactAndCut, systemClock } from '../../base/index.ts';
import { type BlobId, BlobNotFoundError } from '../storage.ts';

/** Facts that a provider's adapter has about a failed request. */
export interface Failure {
  /** The place: `s3://bucket/prefix/`. */
  readonly storage: string;
  readonly id?: BlobId | undefined;
  readonly operation: string;
  /** The put must fail if the blob exists. */
  readonly isExclusive?: boolean | undefined;
  readonly status: number | undefined;
  /** The service's own code: `SlowDown`. */
  readonly code: string;
  readonly retryAfterMs?: number | undefined;
  /**
   * The missing thing in the service's own words. A 404 alone proves nothing: proxies and
   * maintenance pages use it too. A blob that falsely counts as missing may be the one with the
   * object lock settings.
   */
  readonly missing?: 'blob' | 'bucket' | undefined;
  readonly cause: unknown;
}

/** Codes of failed or broken connections. All are temporary. */
const UNREACHABLE: Record<string, string> = {
  ECONNREFUSED: 'nothing is listening there: check the endpoint, and that the service is running',
  ENOTFOUND: 'the host name is not known: check the endpoint and DNS',
  EAI_AGAIN: 'the name server did not answer: check DNS',
  EHOSTUNREACH: 'there is no route to it: check the network',
  ENETUNREACH: 'there is no route to it: check the network',
  ETIMEDOUT: 'the connection timed out: check the network and firewalls',
  TimeoutError: 'the connection timed out: check the network and firewalls',
  ENETDOWN: 'the network is down',
};
const BAD_CERTIFICATE =
  /^(CERT_|ERR_TLS_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_(GET|VERIFY)|ERR_SSL|EPROTO|HOSTNAME_MISMATCH)/;

/** Statuses that mean "later". */
const THROTTLED = new Set([429, 503]);
const PASSING = new Set([408, 500, 502, 504]);

/**
 * Codes of full storages. Ceph: QuotaExceeded. MinIO: XMinioStorageFull and
 * XMinioAdminBucketQuotaExceeded. Ozone: QUOTA_EXCEEDED. versitygw: InsufficientStorage. Backblaze
 * B2: AccessDenied with "storage cap exceeded".
 */
const FULL =
  /quota_?exceeded|quota (?:has been |is |was )?exceeded|storage ?cap exceeded|insufficient ?storage|storage ?full|no space left|not enough (?:disk )?space/i;

const isFull = ({ operation, status, code, cause }: Failure): boolean =>
  status === 507 ||
  (operation === 'put' &&
    status !== undefined &&
    status >= 400 &&
    // These are quotas of requests per time.
    !THROTTLED.has(status) &&
    FULL.test(`${code} ${messageOf(cause)}`));

/** Describes a failed request for the caller, and decides whether a retry may help. */
export function describeFailure(failure: Failure): CodedError {
  const { storage, id, operation, status, code, missing, cause, retryAfterMs } = failure;
  const blob = id === undefined ? '' : ` of ${id}`;
  const where = `${operation}${blob} at ${storage} failed`;
  const told = [status, code, redactAndCut(messageOf(cause))].filter(
    (part) => part !== undefined && part !== '',
  );
  const facts = {
    ...(status !== undefined && { status }),
    ...(id !== undefined && { blobId: id }),
    ...(retryAfterMs !== undefined && { retryAfterMs }),
    serviceCode: code,
  };
  const make = (name: string, hint: string, retry: 'never' | 'backoff'): CodedError =>
    new CodedError(name, `${where}: ${told.join(' ')}${hint === '' ? '' : `; ${hint}`}`, {
      cause,
      retry,
      facts,
    });
  const system = systemCodeOf(cause) ?? code;
  if (/wrong version number|plain HTTP request/i.test(messageOf(cause))) {
    return make(
      'STORAGE_TLS',
      'the server does not speak TLS: check whether the endpoint must be http or https',
      'never',
    );
  }
  if (BAD_CERTIFICATE.test(system)) {
    const hint =
      'the certificate is not trusted or is for another name: check the endpoint and caFile';
    return make('STORAGE_TLS', hint, 'never');
  }
  const unreachable = lookup(UNREACHABLE, system);
  if (unreachable !== undefined) return make('STORAGE_UNREACHABLE', unreachable, 'backoff');
  if (status === undefined) return make('STORAGE_FAILED', '', 'backoff');
  if (isFull(failure))
    return make('STORAGE_FULL', 'there is no space left in the storage', 'never');
  if (missing === 'blob' && id !== undefined) return new BlobNotFoundError(id, { cause });
  if (missing === 'bucket') {
    const hint = 'there is no such bucket: check its name and the endpoint, or create it';
    return make('STORAGE_NOT_FOUND', hint, 'never');
  }
  if (status === 401 || status === 403) {
    const hint =
      'check the credentials and their permissions (docs/storage.md lists those that are needed)';
    return make('STORAGE_DENIED', hint, 'never');
  }
  if (status === 404) {
    const hint =
      'the service does not say what it did not find: check the endpoint and any proxies in between';
    return make('STORAGE_FAILED', hint, 'backoff');
  }
  if (isRefusedPut(failure)) return make('BLOB_EXISTS', '', 'never');
  if (THROTTLED.has(status)) {
    return make(
      'STORAGE_THROTTLED',
      'the service is busy: lower the rate limits or the number of agents',
      'backoff',
    );
  }
  if (status === 501) {
    return make('STORAGE_FAILED', 'the service does not support what it was asked for', 'never');
  }
  if (PASSING.has(status) || status > 500) return make('STORAGE_FAILED', '', 'backoff');
  if (status >= 300 && status < 400 && code === '') {
    const hint = 'it redirects elsewhere: check the endpoint and any proxies in between';
    return make('STORAGE_FAILED', hint, 'backoff');
  }
  // A 2xx answer that could not be parsed was damaged in transit.
  if (status < 300) return make('STORAGE_FAILED', '', 'backoff');
  return make('STORAGE_FAILED', '', 'never');
}

/** Services' codes for an existing blob. */
const EXISTS = new Set(['BlobAlreadyExists', 'PreconditionFailed']);

/** A conflict may also be a lease, a policy, or an account in creation. Some services send 304. */
const isRefusedPut = ({ operation, status, code, isExclusive }: Failure): boolean =>
  operation === 'put' &&
  (status === 412 || status === 409 || (status === 304 && isExclusive === true)) &&
  (isExclusive === true || EXISTS.has(code));

/** A success that the service would not have sent: something in between answered. */
export function strangeAnswer(storage: string, operation: string, what: string): CodedError {
  const text = `${operation} at ${storage} got an answer that does not come from the service: ${what}`;
  const hint = 'check the endpoint and any proxies in between';
  return new CodedError('STORAGE_FAILED', `${text}; ${hint}`, { retry: 'backoff' });
}

/** The first system error among causes: `ECONNRESET`. */
function systemCodeOf(error: unknown): string | undefined {
  for (let at = error, depth = 0; at instanceof Error && depth < 6; at = at.cause, depth++) {
    if (at.name === 'TimeoutError') return 'TimeoutError';
    if (!('code' in at) || typeof at.code !== 'string') continue;
    if (Object.hasOwn(UNREACHABLE, at.code) || BAD_CERTIFICATE.test(at.code)) {
      return at.code;
    }
  }
  if (error instanceof AggregateError) return systemCodeOf(error.errors[0]);
  return undefined;
}

/** `Retry-After` in milliseconds: seconds, or a date. */
export function parseRetryAfter(
  header: string | undefined,
  nowMs = systemClock.nowNs() / 1_000_000n,
): number | undefined {
  if (header === undefined || header === '') return undefined;
  const seconds = Number(header);
  const ms = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(header) - Number(nowMs);
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}
