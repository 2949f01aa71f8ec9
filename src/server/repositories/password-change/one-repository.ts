import { type Clock, CodedError, isCode, type Logger, type Secret } from '../../../base/index.ts';
import type { BlobStorage } from '../../../blob/index.ts';
import { parseBackupStorageLocation, type StorageKind } from '../../../config/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  type KubeClient,
} from '../../../kube/index.ts';
import { loadRepositoryAccess } from '../../../repository-access/index.ts';
import {
  assertPasswordMayChange,
  changePassword,
  deriveNewKey,
  type Format,
  loadFormat,
  loadFormatToChange,
} from '../../../repository/index.ts';

export interface RepositoryOpener {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** Credentials are written there. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openStorage: (location: string) => Promise<BlobStorage>;
  /** Waits for a killed run with the same passwords to end; default 10 s. */
  readonly settle?: (() => Promise<void>) | undefined;
}

export type Passwords = readonly [from: Secret, to: Secret];

/** A repository before the change. */
export interface Surveyed {
  readonly repository: BackupRepository;
  /** The password that opens it. `nothing`: there is no repository yet. */
  readonly has: 'from' | 'to' | 'nothing';
  readonly isReadOnly: boolean;
  /** Undefined if there is no repository. */
  readonly format: Format | undefined;
  /** Key of the new password, derived early because that takes a moment. */
  readonly newKey: Uint8Array | undefined;
}

/** Attempts if the repository changes meanwhile. Our choice. */
const ATTEMPTS_MAX = 3;

/**
 * Finds the password that opens the repository. Changes nothing. Throws `NOT_A_REPOSITORY` if a
 * repository is gone that was there before. Throws `WRONG_PASSWORD` if no password opens it, and
 * `LOCATION_READ_ONLY` if a change is needed and not possible. Also throws
 * `PASSWORD_CHANGE_UNSUPPORTED`, `LOCATION_WRITE_ONCE`, and errors of the storage.
 */
export async function survey(
  repository: BackupRepository,
  passwords: Passwords,
  opener: RepositoryOpener,
): Promise<Surveyed> {
  const { storageLocation, isReadOnly } = await locationOf(repository, opener);
  const nothing = { repository, isReadOnly, format: undefined, newKey: undefined };
  try {
    await using storage = await open(repository, opener);
    const format = await loadFormatToChange(formatOptions(storage, opener), passwords);
    const newKey = await deriveNewKey(format, passwords[1]);
    if (Buffer.compare(newKey, format.formatKey) === 0) {
      return { repository, isReadOnly, has: 'to', format, newKey };
    }
    if (isReadOnly) {
      const text = `location ${storageLocation} is read-only (spec.accessMode), and its repository has another password than the new one: change it first in the cluster that may write there`;
      throw new CodedError('LOCATION_READ_ONLY', text);
    }
    if (!format.parameters.enablePasswordChange) {
      const text = 'the password of this repository cannot be changed: its format is too old';
      throw new CodedError('PASSWORD_CHANGE_UNSUPPORTED', text);
    }
    assertPasswordMayChange(storage);
    return { repository, isReadOnly, has: 'from', format, newKey };
  } catch (error) {
    if (!isCode(error, 'NOT_A_REPOSITORY', 'STORAGE_NOT_FOUND')) throw error;
    // The repository would keep the old password, which the Secret loses.
    if (repository.status?.lastMaintenanceTime != null) {
      const text = `its repository is not at location ${storageLocation}: point the location back, or delete the BackupRepository if the repository is gone for good`;
      throw new CodedError('NOT_A_REPOSITORY', text, { cause: error });
    }
    return { ...nothing, has: 'nothing' };
  }
}

/** Changes the password. May be repeated, also after a crash. Throws errors of `changePassword`. */
export async function changeOne(
  surveyed: Surveyed,
  passwords: Passwords,
  opener: RepositoryOpener,
): Promise<void> {
  const { repository, isReadOnly } = surveyed;
  let { format, newKey } = surveyed;
  if (!format || isReadOnly) return;
  await using storage = await open(repository, opener);
  for (let attempt = 1; ; attempt++) {
    try {
      const { settle } = opener;
      await changePassword(storage, format, passwords[1], {
        ...(newKey && { newKey }),
        ...(settle && { settle }),
      });
      return;
    } catch (error) {
      // A second BackupRepository may belong to the same repository.
      if (!isCode(error, 'PASSWORD_CHANGE_RACED') || attempt >= ATTEMPTS_MAX) throw error;
      format = await loadFormatToChange(formatOptions(storage, opener), passwords);
      newKey = undefined;
    }
  }
}

/** Throws `WRONG_PASSWORD` if the password does not open it. */
export async function assertOpens(
  repository: BackupRepository,
  password: Secret,
  opener: RepositoryOpener,
): Promise<void> {
  await using storage = await open(repository, opener);
  await loadFormat({ ...formatOptions(storage, opener), password });
}

async function locationOf(
  { spec }: BackupRepository,
  { client, namespace, signal }: RepositoryOpener,
): Promise<{ storageLocation: string; isReadOnly: boolean }> {
  const storageLocation = spec.backupStorageLocation;
  const ref = { namespace, name: storageLocation };
  const found = await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal });
  if (!found) {
    const text = `its location ${storageLocation} does not exist: delete the BackupRepository if the location is gone for good`;
    throw new CodedError('BAD_STORAGE_LOCATION', text);
  }
  const isReadOnly = parseBackupStorageLocation(found).spec.accessMode === 'ReadOnly';
  return { storageLocation, isReadOnly };
}

async function open({ spec }: BackupRepository, opener: RepositoryOpener): Promise<BlobStorage> {
  const { client, namespace, signal, directory, defaultCredentials, openStorage } = opener;
  const access = await loadRepositoryAccess({
    client,
    namespace,
    signal,
    directory,
    defaultCredentials,
    isWriting: false,
    volumeNamespace: spec.volumeNamespace,
    storageLocation: spec.backupStorageLocation,
  });
  return openStorage(access.location);
}

const formatOptions = (
  storage: BlobStorage,
  { clock, logger }: RepositoryOpener,
): Parameters<typeof loadFormatToChange>[0] => ({
  storage,
  clock,
  warn: (message) => {
    logger.warn({ storage: storage.displayName }, message);
  },
});
