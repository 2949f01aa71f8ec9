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
  /** For credentials. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openStorage: (location: string) => Promise<BlobStorage>;
  /** How long a killed run with the same passwords may still be at work; by default 10 s. */
  readonly settle?: (() => Promise<void>) | undefined;
}

/** From the one that was to the one that comes. */
export type Passwords = readonly [from: Secret, to: Secret];

/** What was found of one repository, before anything is changed. */
export interface Surveyed {
  readonly repository: BackupRepository;
  /**
   * `from` has the password that was, `to` the one that comes, in `nothing` there is no repository
   * yet.
   */
  readonly has: 'from' | 'to' | 'nothing';
  readonly isReadOnly: boolean;
  /** Undefined where there is nothing to be changed. */
  readonly format: Format | undefined;
  /** Key of the new password: to derive it takes a moment, for which nobody should have to wait. */
  readonly newKey: Uint8Array | undefined;
}

/** Repository changes that came between are looked at anew so often. Our choice. */
const ATTEMPTS_MAX = 3;

/**
 * Which of the passwords opens the repository. Changes nothing. Throws `WRONG_PASSWORD` where
 * neither does, `LOCATION_READ_ONLY` where it has to be changed and may not be,
 * `PASSWORD_CHANGE_UNSUPPORTED`, `LOCATION_WRITE_ONCE`, and what the storage throws.
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
    if (isCode(error, 'NOT_A_REPOSITORY', 'STORAGE_NOT_FOUND'))
      return { ...nothing, has: 'nothing' };
    throw error;
  }
}

/**
 * Gives it the new password, and finishes what an earlier run has begun. May be repeated. Throws
 * what `changePassword` throws.
 */
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
      // Another BackupRepository may be of the same repository.
      if (!isCode(error, 'PASSWORD_CHANGE_RACED') || attempt >= ATTEMPTS_MAX) throw error;
      format = await loadFormatToChange(formatOptions(storage, opener), passwords);
      newKey = undefined;
    }
  }
}

/** Throws `WRONG_PASSWORD` where the password does not open it. */
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
