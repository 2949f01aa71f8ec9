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
/** Requests for keys have no other watchdog. Our choice: they take less than a second. */
const IDENTITY_TIMEOUT_MS = 30_000;
/** Services other than Amazon's take any region; Amazon's redirect to the right region. */
const REGION_DEFAULT = 'us-east-1';

const nothing = (): void => undefined;
const SILENT = { trace: nothing, debug: nothing, info: nothing, warn: nothing, error: nothing };

/** A client for the location, without a request. Throws `BAD_LOCATION`. */
export function createS3Client(
  location: S3Location,
  environment: NodeJS.ProcessEnv,
  region: string | undefined = location.region,
): S3Client {
  const { profile, credentialsFile: file, endpoint } = location;
  if (file !== undefined) assertReadable(file);
  const options: S3ClientConfig = {
    region: region ?? findRegion(environment, profile, file) ?? REGION_DEFAULT,
    // Keys of a workload identity or an instance are renewed before they expire.
    credentials: credentialsFor(location, environment, identityClient(location, environment)),
    // A host name cannot contain a tenant.
    forcePathStyle: location.pathStyle ?? (endpoint !== undefined || location.bucket.includes(':')),
    followRegionRedirects: true,
    // Otherwise the library warns on the console.
    logger: SILENT,
    // Longshore has its own retries, checksums and time-outs.
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

/** Configuration of clients for identity services. */
interface IdentityClientConfig {
  readonly requestHandler: BoundedHandler;
}

/** For services that give out keys. `insecureTls` and the bucket's connections are not for them. */
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
 * Credentials of the location, else of the environment, else the chain of all AWS tools. The
 * library reads each file once per process; {@link renewCredentials} reads it again.
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

/** Loads the credentials again from their source. Returns whether they changed. */
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
    // The service's error matters more than a file that is just being written.
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
