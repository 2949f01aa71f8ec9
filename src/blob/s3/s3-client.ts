import { readFileSync } from 'node:fs';
import { S3Client, type S3ClientConfig } from '@aws-sdk/client-s3';
import { defaultProvider } from '@aws-sdk/credential-provider-node';
import { CodedError, messageOf } from '../../base/index.ts';
import { createAgents } from '../http/agents.ts';
import { CONNECTIONS } from '../http/remote-storage.ts';
import type { S3Location } from '../location.ts';
import { type Readable } from 'node:stream';
import { NodeHttpHandler, type NodeHttpHandlerOptions } from '@smithy/node-http-handler';
import { ERROR_BYTES_MAX, readStart } from '../http/transfer.ts';
import { homedir } from 'node:os';
import { join } from 'node:path';

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

type Handle = NodeHttpHandler['handle'];
type HandlerOptions = NonNullable<Parameters<Handle>[1]>;

/**
 * Bounds the answers. The library reads every body to its end, except those of blobs. The caller of
 * a successful GET reads its body. A time-out is for requests without a watchdog.
 */
export class BoundedHandler extends NodeHttpHandler {
  readonly #timeoutMs: number | undefined;

  constructor(options: NodeHttpHandlerOptions, timeoutMs?: number) {
    super(options);
    this.#timeoutMs = timeoutMs;
  }

  override async handle(...[request, options = {}]: Parameters<Handle>): ReturnType<Handle> {
    const result = await super.handle(request, this.#withTimeout(options));
    const { statusCode } = result.response;
    const isFailure = statusCode >= 300;
    if (request.method === 'HEAD' || (request.method === 'GET' && !isFailure)) return result;
    const { bytes, isWhole } = await readStart(result.response.body as Readable, ERROR_BYTES_MAX);
    if (!isWhole && !isFailure) throw new Error(TOO_LONG);
    // A partial page is not valid XML, and the status would be lost.
    result.response.body = isWhole
      ? bytes
      : Buffer.from(`<Error><Message>${TOO_LONG}</Message></Error>`);
    return result;
  }

  #withTimeout(options: HandlerOptions): HandlerOptions {
    if (this.#timeoutMs === undefined) return options;
    const timeout = AbortSignal.timeout(this.#timeoutMs);
    const given = options.abortSignal as AbortSignal | undefined;
    return { ...options, abortSignal: given ? AbortSignal.any([given, timeout]) : timeout };
  }
}

const TOO_LONG = `the answer has more than ${ERROR_BYTES_MAX} bytes`;

/** The region of the environment or the profile, as in the AWS tools; undefined without one. */
function findRegion(
  environment: NodeJS.ProcessEnv,
  profile = environment.AWS_PROFILE ?? 'default',
  file = environment.AWS_CONFIG_FILE ?? join(homedir(), '.aws', 'config'),
): string | undefined {
  const given = environment.AWS_REGION ?? environment.AWS_DEFAULT_REGION;
  if (given !== undefined && given !== '') return given;
  try {
    return regionIn(readFileSync(file, 'utf8'), profile);
  } catch {
    return undefined;
  }
}

/** The region of a profile in the text of ~/.aws/config. */
function regionIn(text: string, profile: string): string | undefined {
  let isOurs = false;
  for (const line of text.split('\n')) {
    const [, section] = /^\s*\[(?:profile\s+)?([^\]]+)\]/.exec(line) ?? [];
    if (section !== undefined) isOurs = section.trim() === profile;
    const [, region] = /^\s*region\s*=\s*(\S+)/.exec(line) ?? [];
    if (isOurs && region !== undefined) return region;
  }
  return undefined;
}
