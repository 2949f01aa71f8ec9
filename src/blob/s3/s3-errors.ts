import { CodedError, lookup } from '../../base/index.ts';
import { describeFailure, type Failure, parseRetryAfter } from '../http/failures.ts';
import { invalidRange } from '../storage.ts';

export type S3Failure = Pick<Failure, 'storage' | 'operation' | 'id' | 'isExclusive'>;

/** Used fields of the library's errors. */
interface ServiceError extends Error {
  readonly Code?: string;
  readonly Region?: string;
  /** The host in a redirect. */
  readonly Endpoint?: string;
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

/** Codes of Amazon, of its token service, and of MinIO. */
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

/** The service expects a signature for another region, and may not name it. */
const REGION_CODES = [
  'AuthorizationHeaderMalformed',
  'InvalidRegion',
  'PermanentRedirect',
  'IllegalLocationConstraintException',
];
const OTHER_REGION: Kind = {
  name: 'STORAGE_FAILED',
  hint: 'set region to the one that the service expects, and check the endpoint and the access key',
  retry: 'never',
};

/** Codes that override the meaning of their status. */
const KINDS: Record<string, Kind> = {
  InvalidAccessKeyId: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'the service does not know this access key: check credentialsFile, profile or AWS_ACCESS_KEY_ID',
    retry: 'never',
  },
  SignatureDoesNotMatch: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'the secret key does not belong to the access key, or the service is in another region: check the credentials and the setting region',
    retry: 'never',
  },
  ...Object.fromEntries(REGION_CODES.map((code) => [code, OTHER_REGION] as const)),
  ...Object.fromEntries(ENDED_CODES.map((code) => [code, ENDED] as const)),
  CredentialsProviderError: {
    name: 'STORAGE_CREDENTIALS',
    hint: 'no credentials were found: set credentialsFile or profile, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role',
    retry: 'never',
  },
  // The client corrects its clock by the answer, so the next try succeeds.
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
  // A request for the same key at the same time. These codes come with 409.
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

/** The service's codes for missing things. */
const MISSING: Record<string, 'blob' | 'bucket'> = { NoSuchKey: 'blob', NoSuchBucket: 'bucket' };

/** Messages of services that do not support a checksum, or its header. */
const UNKNOWN_CHECKSUM = /checksum|x-amz-sdk/i;
const UNKNOWN_CHECKSUM_CODES = ['NotImplemented', 'InvalidArgument', 'InvalidRequest'];

export function s3Error(error: unknown, failed: S3Failure): CodedError {
  const { storage, operation, id, isExclusive } = failed;
  const service = error as ServiceError;
  const code = codeOf(service);
  const status = service.$metadata?.httpStatusCode ?? service.$response?.statusCode;
  if (status === 416 && id !== undefined) return invalidRange(id, 0, 0);
  if (UNKNOWN_CHECKSUM_CODES.includes(code) && UNKNOWN_CHECKSUM.test(service.message)) {
    const text = `${storage} does not support this checksum: ${service.message}; set checksum to auto, md5 or none`;
    const facts = { serviceCode: code, ...(status !== undefined && { status }) };
    return new CodedError('UNSUPPORTED_CHECKSUM', text, { cause: error, facts });
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

/** A 404 to a HEAD has no body that names the missing thing. */
export const isUnexplained404 = (error: unknown): boolean => {
  const { $metadata, $response } = error as ServiceError;
  const status = $metadata?.httpStatusCode ?? $response?.statusCode;
  return status === 404 && lookup(MISSING, codeOf(error as ServiceError)) === undefined;
};

/** Whether a HEAD was refused without a reason. A GET may be allowed, or give a reason. */
export const isRefusedHead = (error: unknown): boolean =>
  error instanceof CodedError &&
  [400, 403, 405, 501].includes(Number(error.facts.status)) &&
  error.facts.serviceCode === '';

/** The answer for the lock configuration of a bucket without object lock. */
export const isWithoutLocks = (error: unknown): boolean =>
  error instanceof CodedError &&
  codeOf((error.cause ?? {}) as ServiceError) === 'ObjectLockConfigurationNotFoundError';

/** Codes of expired or replaced credentials. */
const RENEWABLE = new Set([...ENDED_CODES, 'InvalidAccessKeyId']);

/** Whether newer credentials may help. Answers to HEAD give no reason. */
export function wantsNewCredentials(error: unknown): boolean {
  const { $metadata, $response } = error as ServiceError;
  const code = codeOf(error as ServiceError);
  const status = $metadata?.httpStatusCode ?? $response?.statusCode ?? 0;
  return RENEWABLE.has(code) || (code === '' && [400, 401, 403].includes(status));
}

/** Text before the expected region: `expecting 'eu-west-3'`. */
const EXPECTED_REGION =
  /\bexpect(?:ing|ed|s)?:?\s+(?:region\s+)?['"]?(?:\d{8}\/)?([a-z0-9][\w-]*)/i;

/** The bucket's region, according to the service. */
export function wantsOtherRegion(error: unknown): string | undefined {
  const { Region, Endpoint, message, $response } = error as ServiceError;
  const isWrong = REGION_CODES.includes(codeOf(error as ServiceError));
  if (!isWrong && $response?.statusCode !== 301) return undefined;
  return (
    Region ??
    $response?.headers?.['x-amz-bucket-region'] ??
    EXPECTED_REGION.exec(message)?.[1] ??
    // On Amazon: bucket.s3.eu-west-3.amazonaws.com
    /\bs3[.-]([a-z]{2}-[a-z-]+-\d)\.amazonaws\./.exec(Endpoint ?? '')?.[1]
  );
}
