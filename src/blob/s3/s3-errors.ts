import { CodedError, lookup, messageOf } from '../../base/index.ts';
import { describeFailure, type Failure, parseRetryAfter } from '../http/failures.ts';
import { invalidRange } from '../storage.ts';

export type S3Failure = Pick<Failure, 'storage' | 'operation' | 'id' | 'isExclusive'>;

/** What the library's errors carry, as far as it is looked at. */
interface ServiceError extends Error {
  readonly Code?: string;
  readonly Region?: string;
  readonly $metadata?: { readonly httpStatusCode?: number };
  readonly $response?: {
    readonly statusCode?: number;
    readonly headers?: Readonly<Record<string, string>>;
  };
}

interface Kind {
  readonly name: string;
  readonly hint: string;
  readonly retry: 'never' | 'backoff';
}

/** Amazon's, of its token service's, and of MinIO. */
const ENDED_CODES = [
  'ExpiredToken',
  'ExpiredTokenException',
  'TokenRefreshRequired',
  'InvalidToken',
  'InvalidTokenId',
];
const ENDED: Kind = {
  name: 'STORAGE_CREDENTIALS',
  hint: 'the session token has expired, and its source had no newer one: put a new one there (files are read again while a command runs, AWS_SESSION_TOKEN is not)',
  retry: 'never',
};

/** Codes that come with a status which would be read otherwise. */
const KINDS: Record<string, Kind> = {
  InvalidAccessKeyId: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'the service does not know this access key: check credentialsFile, profile or AWS_ACCESS_KEY_ID',
    retry: 'never',
  },
  SignatureDoesNotMatch: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'the secret key does not belong to the access key: check the credentials',
    retry: 'never',
  },
  ...Object.fromEntries(ENDED_CODES.map((code) => [code, ENDED] as const)),
  CredentialsProviderError: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'no credentials were found: set credentialsFile or profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role',
    retry: 'never',
  },
  // The client sets its clock by the answer, so the next try is in time.
  RequestTimeTooSkewed: {
    name: 'STORAGE_CLOCK',
    hint: 'the clock of this machine is wrong: correct it (NTP)',
    retry: 'backoff',
  },
  SlowDown: {
    name: 'STORAGE_THROTTLED',
    hint: 'the service is busy: lower the rate limits or the number of agents',
    retry: 'backoff',
  },
  // Somebody else was at the same key at the same time; these come with 409.
  OperationAborted: { name: 'STORAGE_FAILED', hint: '', retry: 'backoff' },
  ConditionalRequestConflict: { name: 'STORAGE_FAILED', hint: '', retry: 'backoff' },
  RequestTimeout: { name: 'STORAGE_FAILED', hint: '', retry: 'backoff' },
  BadDigest: {
    name: 'STORAGE_FAILED',
    hint: 'the bytes were changed in transit',
    retry: 'backoff',
  },
  XAmzContentChecksumMismatch: {
    name: 'STORAGE_FAILED',
    hint: 'the bytes were changed in transit',
    retry: 'backoff',
  },
  IncompleteBody: { name: 'STORAGE_FAILED', hint: '', retry: 'backoff' },
  XMinioStorageFull: {
    name: 'STORAGE_FULL',
    hint: 'there is no space left in the storage',
    retry: 'never',
  },
  QuotaExceeded: { name: 'STORAGE_FULL', hint: "the bucket's quota is used up", retry: 'never' },
};

/** The service's own words for what is not there. */
const MISSING: Record<string, 'blob' | 'bucket'> = { NoSuchKey: 'blob', NoSuchBucket: 'bucket' };

/** Services that know no CRC-32, or not the header, say so in one of these ways. */
const UNKNOWN_CHECKSUM = /checksum|x-amz-sdk|A header you provided implies functionality/i;
const UNKNOWN_CHECKSUM_CODES = ['NotImplemented', 'InvalidArgument', 'InvalidRequest'];

export function s3Error(error: unknown, failed: S3Failure): CodedError {
  const { storage, operation, id, isExclusive } = failed;
  const service = error as ServiceError;
  const code = codeOf(service);
  const status = service.$metadata?.httpStatusCode ?? service.$response?.statusCode;
  if (status === 416 && id !== undefined) return invalidRange(id, 0, 0);
  if (UNKNOWN_CHECKSUM_CODES.includes(code) && UNKNOWN_CHECKSUM.test(service.message)) {
    const text = `${storage} does not support this checksum: ${service.message}`;
    return new CodedError('UNSUPPORTED_CHECKSUM', text, { cause: error });
  }
  const missing = lookup(MISSING, code);
  const described = describeFailure({
    storage,
    operation,
    isExclusive,
    id: missing === 'bucket' ? undefined : id,
    status,
    code,
    missing,
    retryAfterMs: parseRetryAfter(service.$response?.headers?.['retry-after']),
    cause: error,
  });
  const kind = lookup(KINDS, code);
  if (!kind) return described;
  const { name, hint, retry } = kind;
  const [told = ''] = described.message.split('; ');
  return new CodedError(name, `${told}${hint === '' ? '' : `; ${hint}`}`, {
    cause: error,
    retry,
    facts: described.facts,
  });
}

/** HEAD answers have no body, so the library names them by their status. */
function codeOf({ name, Code }: ServiceError): string {
  const code = Code ?? name;
  return ['Error', 'Unknown', 'UnknownError', 'NotFound', 'Forbidden', '403', '404'].includes(code)
    ? ''
    : code;
}

/** A HEAD that ends with 404: it has no body that would say what is missing. */
export const isUnexplained404 = (error: unknown): boolean => {
  const { $metadata, $response } = error as ServiceError;
  const status = $metadata?.httpStatusCode ?? $response?.statusCode;
  return status === 404 && lookup(MISSING, codeOf(error as ServiceError)) === undefined;
};

/** What a bucket says of its lock configuration that was made without object lock. */
export const isWithoutLocks = (error: unknown): boolean =>
  error instanceof CodedError &&
  codeOf((error.cause ?? {}) as ServiceError) === 'ObjectLockConfigurationNotFoundError';

/** Codes of credentials that ended, or were replaced. */
const RENEWABLE = new Set([...ENDED_CODES, 'InvalidAccessKeyId']);

/** Whether newer credentials may help. Answers to HEAD do not say why they refuse. */
export function wantsNewCredentials(error: unknown): boolean {
  const { $metadata, $response } = error as ServiceError;
  const code = codeOf(error as ServiceError);
  const status = $metadata?.httpStatusCode ?? $response?.statusCode ?? 0;
  return RENEWABLE.has(code) || (code === '' && [400, 401, 403].includes(status));
}

/** The region that the service says the bucket is in. */
export function wantsOtherRegion(error: unknown): string | undefined {
  const { Region, $response } = error as ServiceError;
  const code = codeOf(error as ServiceError);
  const isWrong = [
    'AuthorizationHeaderMalformed',
    'PermanentRedirect',
    'IllegalLocationConstraintException',
  ];
  if (!isWrong.includes(code) && $response?.statusCode !== 301) return undefined;
  return Region ?? $response?.headers?.['x-amz-bucket-region'];
}

/** Services that know no `If-None-Match` on puts call the header not implemented. */
export const isUnknownCondition = (error: unknown): boolean =>
  error instanceof CodedError &&
  (error.facts.status === 501 || /NotImplemented|not implemented/i.test(messageOf(error)));

export const noConditionalPut = (cause: unknown): CodedError =>
  new CodedError(
    'UNSUPPORTED_PUT',
    `this service does not support put-if-absent: ${messageOf(cause)}`,
    { cause },
  );
