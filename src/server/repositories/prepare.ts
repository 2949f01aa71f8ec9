import {
  asBuffer,
  type Clock,
  CodedError,
  HOUR_NS,
  isCode,
  type Logger,
  type Nanoseconds,
  type Secret,
} from '../../base/index.ts';
import { blobId, type BlobStorage, type Retention } from '../../blob/index.ts';
import { DEFAULT_ENCRYPTION, DEFAULT_HASH, DEFAULT_SPLITTER } from '../../codec/index.ts';
import {
  BLOBCFG_BLOB,
  clientName,
  createFormat,
  defaultParameters,
  type Format,
  keepReserveOf,
  loadFormat,
  loadMaintenanceParameters,
  openRepository,
  putMaintenanceParameters,
} from '../../repository/index.ts';
import { explainWrongPassword } from './password-secret.ts';

export interface PrepareOptions {
  readonly storage: BlobStorage;
  readonly password: Secret;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Of the BackupStorageLocation, for messages: namespace/name. */
  readonly locationName: string;
  readonly isReadOnly: boolean;
  /** Of a repository that is created now. */
  readonly retention?: Retention | undefined;
  /**
   * How often full maintenance is due in a repository that is set up now; Kopia's own interval
   * without it.
   */
  readonly fullIntervalNs?: Nanoseconds | undefined;
  /** Throws when this process must not write any more. */
  readonly assertLeading?: (() => void) | undefined;
}

/** Velero's name in all its repositories: who owns maintenance, and whose snapshots they are. */
const CLIENT = { username: 'default', hostname: 'default' };
/**
 * Velero writes it last: without it a repository is not set up
 * (pkg/repository/udmrepo/kopialib/repo_init.go).
 */
const SETUP_BLOB = blobId('udmrepo.Repository');
const SETUP_BYTES_MAX = 64 << 10;
/** A creation takes seconds. Our choice. */
const GIVEN_UP_NS = HOUR_NS;

/**
 * Makes the repository ready for Velero's and our data movers: creates it where the location is
 * empty, sets it up where that was not done, and otherwise only checks that the password opens it.
 * May be repeated, also after it was killed at any point. Throws `REPOSITORY_READ_ONLY`,
 * `REPOSITORY_CORRUPTED`, `WRONG_PASSWORD`, `STORAGE_NOT_EMPTY`, and what the storage throws.
 */
export async function prepareRepository(options: PrepareOptions): Promise<void> {
  const { isReadOnly, locationName } = options;
  let format = await findFormat(options);
  if (!format) {
    if (isReadOnly) throw readOnly(locationName);
    await create(options);
    format = await findFormat(options);
  }
  const uniqueId = Buffer.from(format?.uniqueId ?? []).toString('base64');
  if (await isSetUp(options, uniqueId)) return;
  // Set up by whoever may write there.
  if (isReadOnly) return;
  await setUp(options, uniqueId);
}

/** In Velero's words (pkg/repository/provider/unified_repo.go). */
export const readOnly = (locationName: string): CodedError =>
  new CodedError(
    'REPOSITORY_READ_ONLY',
    `cannot create new backup repo for read-only backup storage location ${locationName}`,
  );

/** Undefined where there is no repository. */
async function findFormat(options: PrepareOptions): Promise<Format | undefined> {
  const { storage, password, clock, logger } = options;
  const warn = (message: string): void => {
    logger.warn({ storage: storage.displayName }, message);
  };
  try {
    return await loadFormat({ storage, password, clock, warn });
  } catch (error) {
    if (isCode(error, 'NOT_A_REPOSITORY')) return undefined;
    throw await explainWrongPassword(error, storage, options);
  }
}

async function create(options: PrepareOptions): Promise<void> {
  const { storage, password, retention, assertLeading } = options;
  const format = {
    hash: DEFAULT_HASH,
    encryption: DEFAULT_ENCRYPTION,
    splitter: DEFAULT_SPLITTER,
    version: 3,
    retention,
  } as const;
  assertLeading?.();
  try {
    await createFormat(storage, password, format);
  } catch (error) {
    // Made by somebody else meanwhile; what is there now is looked at next.
    if (isCode(error, 'REPOSITORY_EXISTS')) return;
    if (!isCode(error, 'REPOSITORY_UNFINISHED') || !(await isGivenUp(options))) throw error;
    assertLeading?.();
    await storage.deleteBlob(BLOBCFG_BLOB);
    await createFormat(storage, password, format);
  }
}

/**
 * Whether a creation was killed between its two blobs, and nothing else is there: then it may begin
 * anew.
 */
async function isGivenUp({ storage, clock }: PrepareOptions): Promise<boolean> {
  let isOld = false;
  for await (const { id, timestampNs } of storage.listBlobs('')) {
    if (id !== BLOBCFG_BLOB) return false;
    isOld = clock.nowNs() - timestampNs > GIVEN_UP_NS;
  }
  return isOld;
}

async function isSetUp({ storage }: PrepareOptions, uniqueId: string): Promise<boolean> {
  let bytes: Uint8Array;
  try {
    bytes = await storage.getBlob(SETUP_BLOB, { lengthMax: SETUP_BYTES_MAX, fresh: true });
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return false;
    throw error;
  }
  let found: unknown;
  try {
    found = (JSON.parse(asBuffer(bytes).toString('utf8')) as { uniqueID?: unknown }).uniqueID;
  } catch (cause) {
    throw corrupted(storage, `${SETUP_BLOB} is not JSON`, cause);
  }
  if (found === uniqueId) return true;
  throw corrupted(storage, `unique ID doesn't match: ${SETUP_BLOB} belongs to another repository`);
}

const corrupted = ({ displayName }: BlobStorage, text: string, cause?: unknown): CodedError =>
  new CodedError('REPOSITORY_CORRUPTED', `the repository in ${displayName} is corrupted: ${text}`, {
    cause,
  });

async function setUp(options: PrepareOptions, uniqueId: string): Promise<void> {
  const { storage, password, fullIntervalNs, logger, assertLeading } = options;
  await using repository = await openRepository({ storage, password, client: CLIENT, logger });
  const before = await loadMaintenanceParameters(repository);
  if (before?.owner !== clientName(CLIENT)) {
    const parameters = defaultParameters(CLIENT);
    // Without it what is still needed would be open to deletion once the period is over.
    if (repository.format.retention) parameters.extendObjectLocks = true;
    if (fullIntervalNs !== undefined) parameters.full.interval = Number(fullIntervalNs);
    assertLeading?.();
    await putMaintenanceParameters(repository, parameters);
    await repository.flush();
    await keepReserveOf(repository);
  }
  assertLeading?.();
  const bytes = Buffer.from(JSON.stringify({ uniqueID: uniqueId }));
  await storage.putBlob(SETUP_BLOB, [bytes]);
}
