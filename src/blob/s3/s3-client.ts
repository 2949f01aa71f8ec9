import { readFileSync } from 'node:fs';
import { S3Client, type S3ClientConfig } from '@aws-sdk/client-s3';
import { defaultProvider } from '@aws-sdk/credential-provider-node';
import { CodedError, messageOf } from '../../base/index.ts';
import { createAgents } from '../http/agents.ts';
import { CONNECTIONS } from '../http/remote-storage.ts';
import type { S3Location } from '../location.ts';
import { BoundedHandler } from './bounded-handler.ts';
import { findRegion } from './region.ts';

const CONNECT_TIMEOUT_MS = 10_000;
/**
 * Of one request for keys: the watchdog of a request to the bucket cannot end it. Our choice: it is
 * answered within a second.
 */
const IDENTITY_TIMEOUT_MS = 30_000;
/** Services that are not Amazon's take any; Amazon's redirect to the right one. */
const REGION_DEFAULT = 'us-east-1';

const nothing = (): void => undefined;
const SILENT = { trace: nothing, debug: nothing, info: nothing, warn: nothing, error: nothing };

/** A client for the location; makes no request. Throws `BAD_LOCATION`. */
export function createS3Client(
  location: S3Location,
  environment: NodeJS.ProcessEnv,
  region: string | undefined = location.region,
): S3Client {
  const { profile, credentialsFile: file, endpoint } = location;
  if (file !== undefined) assertReadable(file);
  const options: S3ClientConfig = {
    region: region ?? findRegion(environment, profile, file) ?? REGION_DEFAULT,
    // Keys that a workload identity or an instance hands out are fetched again before they end.
    credentials: credentialsFor(location, environment, identityClient(location, environment)),
    // The name of a tenant is no part of a host's name.
    forcePathStyle: location.pathStyle ?? (endpoint !== undefined || location.bucket.includes(':')),
    followRegionRedirects: true,
    // It warns on the console otherwise.
    logger: SILENT,
    // Tries, checksums and time-outs are ours: with budgets, in headers, by progress.
    maxAttempts: 1,
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: new BoundedHandler({
      ...createAgents(location, CONNECTIONS, environment),
      connectionTimeout: CONNECT_TIMEOUT_MS,
      socketAcquisitionWarningTimeout: 3_600_000,
    }),
    ...(endpoint !== undefined && { endpoint }),
  };
  return new S3Client(options);
}

/** For the clients that ask identity services for keys. */
interface IdentityClientConfig {
  readonly requestHandler: BoundedHandler;
}

/**
 * For the services that hand out keys. They would use the bucket's connections, and `insecureTls`
 * is for the bucket alone.
 */
function identityClient(
  { caFile }: S3Location,
  environment: NodeJS.ProcessEnv,
): IdentityClientConfig {
  const requestHandler = new BoundedHandler(
    { ...createAgents({ caFile }, 1, environment), connectionTimeout: CONNECT_TIMEOUT_MS },
    IDENTITY_TIMEOUT_MS,
  );
  return { requestHandler };
}

/**
 * What the location names before the environment, then the chain that all AWS tools have. The
 * library would read each file once in the life of the process; {@link renewCredentials} reads it
 * again.
 */
function credentialsFor(
  { profile, credentialsFile: file }: S3Location,
  environment: NodeJS.ProcessEnv,
  clientConfig: IdentityClientConfig,
): NonNullable<S3ClientConfig['credentials']> {
  if (file !== undefined) {
    const chosen = profile ?? 'default';
    return defaultProvider({
      profile: chosen,
      filepath: file,
      configFilepath: file,
      ignoreCache: true,
      clientConfig,
    });
  }
  if (profile !== undefined) return defaultProvider({ profile, ignoreCache: true, clientConfig });
  const {
    AWS_ACCESS_KEY_ID: accessKeyId,
    AWS_SECRET_ACCESS_KEY: secretAccessKey,
    AWS_SESSION_TOKEN: sessionToken,
  } = environment;
  if (!accessKeyId || !secretAccessKey) return defaultProvider({ ignoreCache: true, clientConfig });
  return { accessKeyId, secretAccessKey, ...(sessionToken && { sessionToken }) };
}

/**
 * Asks for credentials once more, wherever they come from. Returns whether they are others than
 * before.
 */
export async function renewCredentials({ config }: S3Client): Promise<boolean> {
  try {
    const before = await config.credentials();
    const after = await config.credentials({ forceRefresh: true });
    return (
      after.accessKeyId !== before.accessKeyId ||
      after.secretAccessKey !== before.secretAccessKey ||
      after.sessionToken !== before.sessionToken
    );
  } catch {
    // What the service said matters more than what a file says that is just being written.
    return false;
  }
}

function assertReadable(file: string): void {
  try {
    readFileSync(file);
  } catch (cause) {
    const text = `cannot read credentialsFile: ${messageOf(cause)}`;
    throw new CodedError('BAD_LOCATION', text, { cause });
  }
}
