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
  /** `namespace/name` of the BackupStorageLocation, for messages. */
  readonly locationName: string;
  readonly isReadOnly: boolean;
  /** For a new repository. */
  readonly retention?: Retention | undefined;
  /** Interval of full maintenance in a new repository. Default: Kopia's. */
  readonly fullIntervalNs?: Nanoseconds | undefined;
  /** Throws when this process must not write any more. */
  readonly assertLeading?: (() => void) | undefined;
}

/** Velero's client name in all repositories: the owner of maintenance and snapshots. */
const CLIENT = { username: 'default', hostname: 'default' };
/** The blob that Velero writes last during setup (pkg/repository/udmrepo/kopialib/repo_init.go). */
const SETUP_BLOB = blobId('udmrepo.Repository');
const SETUP_BYTES_MAX = 64 << 10;
/** Age after which an unfinished creation counts as dead. A creation takes seconds. Our choice. */
const GIVEN_UP_NS = HOUR_NS;

/**
 * Makes the repository ready for data movers of Velero and Longshore: creates a missing repository,
 * and completes an unfinished setup. Otherwise it only checks the password. May be repeated, also
 * after a crash at any point. Throws `REPOSITORY_READ_ONLY`, `REPOSITORY_CORRUPTED`,
 * `WRONG_PASSWORD`, `STORAGE_NOT_EMPTY`, and errors of the storage.
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
  // A cluster with write access completes the setup.
  if (isReadOnly) return;
  await setUp(options, uniqueId);
}

/** Velero's message (pkg/repository/provider/unified_repo.go). */
export const readOnly = (locationName: string): CodedError =>
  new CodedError(
    'REPOSITORY_READ_ONLY',
    `cannot create new backup repo for read-only backup storage location ${locationName}`,
  );

/** Undefined if there is no repository. */
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
    // A different process created it meanwhile. The caller loads its format next.
    if (isCode(error, 'REPOSITORY_EXISTS')) return;
    if (!isCode(error, 'REPOSITORY_UNFINISHED') || !(await isGivenUp(options))) throw error;
    assertLeading?.();
    await storage.deleteBlob(BLOBCFG_BLOB);
    await createFormat(storage, password, format);
  }
}

/**
 * Whether a creation died between its two blobs and nothing else exists. Then it may start again.
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
    // Without lock extension, needed packs could be deleted after the retention period.
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
