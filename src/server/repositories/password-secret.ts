import { randomBytes } from 'node:crypto';
import { WELL_KNOWN_PASSWORD } from '../../archive/index.ts';
import { CodedError, isCode, messageOf, Secret } from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import {
  bucketLocation,
  type LocationFiles,
  parseBackupStorageLocation,
  REPOSITORY_FOLDER,
  repositoryLocation,
  type StorageKind,
  storageKindOf,
} from '../../config/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupStorageLocation,
  type KubeClient,
  NOT_IN_BACKUPS,
  PASSWORD_SECRET,
  SECRETS,
} from '../../kube/index.ts';
import { loadLocationFiles, PASSWORD_KEY, passwordIn } from '../../repository-access/index.ts';
import { loadFormat } from '../../repository/index.ts';

export interface PasswordSecretOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  /** Credentials of locations are written there. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly openStorage: (location: string, options: { create: boolean }) => Promise<BlobStorage>;
  readonly signal: AbortSignal;
  /** Throws when this process must not write any more. */
  readonly assertLeading?: (() => void) | undefined;
}

/**
 * - `there`: the Secret existed before.
 * - `random`: created with a random password.
 * - `well-known`: created with Velero's password, because the bucket has repositories with it.
 * - `later`: not created, with the reason.
 */
export type PasswordSecretOutcome =
  | { readonly state: 'there' | 'random' | 'well-known' }
  | { readonly state: 'later'; readonly why: string; readonly unreadLocation?: string };

const RANDOM_BYTES = 32;
/** Repositories opened per location to find their password. Each derives a key. Our choice. */
const TRIED_MAX = 3;

/**
 * Creates the Secret with the password of all repositories, and never replaces it. The password is
 * random, or Velero's well-known password if that opens existing repositories. Throws `NO_PASSWORD`
 * if repositories exist and their password is unknown.
 */
export async function ensurePasswordSecret(
  options: PasswordSecretOptions,
): Promise<PasswordSecretOutcome> {
  const { client, namespace, signal } = options;
  const ref = { namespace, name: PASSWORD_SECRET };
  if (await client.find(SECRETS, ref, { signal })) return { state: 'there' };
  const found = await client.list(BACKUP_REPOSITORIES, { namespace, signal });
  const used = found.find(({ status }) => status?.lastMaintenanceTime != null);
  const locations = await client.list(BACKUP_STORAGE_LOCATIONS, { namespace, signal });
  // Without a location nothing needs the password yet, and its bucket may have repositories.
  if (locations.length === 0 && !used) {
    return { state: 'later', why: 'there is no BackupStorageLocation yet' };
  }
  const opened = new Set<boolean>();
  let example = '';
  for (const location of locations) {
    const { name } = location.metadata;
    let tried: readonly Tried[];
    try {
      tried = await triedIn(location, options);
    } catch (error) {
      signal.throwIfAborted();
      if (used) throw lost(namespace, used.metadata.name);
      const why = `location ${name} cannot be read, and it may have repositories with another password: ${messageOf(error)}. Mend or delete the location, or create the Secret: ${RECREATE(namespace)}`;
      return { state: 'later', why, unreadLocation: name };
    }
    for (const { repository, isWellKnown } of tried) {
      opened.add(isWellKnown);
      if (!isWellKnown) example ||= `${repository} at location ${name}`;
    }
  }
  if (opened.has(false)) throw unknown(namespace, example);
  if (used && !opened.has(true)) throw lost(namespace, used.metadata.name);
  return createSecret(options, opened.has(true) ? 'well-known' : 'random');
}

async function createSecret(
  { client, namespace, signal, assertLeading }: PasswordSecretOptions,
  state: 'random' | 'well-known',
): Promise<PasswordSecretOutcome> {
  const password =
    state === 'random' ? randomBytes(RANDOM_BYTES).toString('base64url') : WELL_KNOWN_PASSWORD;
  const data = { [PASSWORD_KEY]: Buffer.from(password).toString('base64') };
  const metadata = { namespace, name: PASSWORD_SECRET, labels: NOT_IN_BACKUPS };
  assertLeading?.();
  try {
    await client.create(SECRETS, { metadata, data }, { signal });
  } catch (error) {
    // Created by another installation at the same time: use that Secret.
    if (isCode(error, 'KUBE_ALREADY_EXISTS')) return { state: 'there' };
    throw error;
  }
  return { state };
}

interface Tried {
  /** The namespace of the volumes. */
  readonly repository: string;
  readonly isWellKnown: boolean;
}

/** Tries Velero's password on the first repositories of a location. */
async function triedIn(
  object: BackupStorageLocation,
  options: PasswordSecretOptions,
): Promise<Tried[]> {
  const location = parseBackupStorageLocation({ ...object, kind: 'BackupStorageLocation' });
  // A plugin's store holds no repositories.
  if (!isBuiltIn(location)) return [];
  const files = await loadLocationFiles(options, location);
  const folders = await foldersIn(bucketLocation(location, files), options).catch(
    (error: unknown) => {
      // A directory is created with its first repository. A missing bucket may be a wrong name.
      const isNew = isCode(error, 'STORAGE_NOT_FOUND') && storageKindOf(location) === 'file';
      if (isNew) return [];
      throw error;
    },
  );
  const tried: Tried[] = [];
  for (const repository of folders) {
    if (tried.length >= TRIED_MAX) break;
    const place = placeOf(location, repository, files);
    const isWellKnown = place === undefined ? undefined : await isWellKnownAt(place, options);
    if (isWellKnown !== undefined) tried.push({ repository, isWellKnown });
  }
  return tried;
}

function isBuiltIn(location: Parameters<typeof storageKindOf>[0]): boolean {
  try {
    storageKindOf(location);
    return true;
  } catch (error) {
    if (isCode(error, 'BAD_STORAGE_LOCATION')) return false;
    throw error;
  }
}

/** Undefined if the folder's name cannot be a namespace. */
function placeOf(
  location: Parameters<typeof repositoryLocation>[0],
  folder: string,
  files: LocationFiles,
): string | undefined {
  try {
    return repositoryLocation(location, folder, files);
  } catch (error) {
    if (isCode(error, 'BAD_STORAGE_LOCATION')) return undefined;
    throw error;
  }
}

async function foldersIn(
  bucket: string,
  { openStorage, signal }: PasswordSecretOptions,
): Promise<string[]> {
  await using storage = await openStorage(bucket, { create: false });
  return (await Array.fromAsync(storage.listFolders(`${REPOSITORY_FOLDER}/`, { signal }))).sort();
}

/** Undefined if there is no repository. */
async function isWellKnownAt(
  place: string,
  { openStorage, client }: PasswordSecretOptions,
): Promise<boolean | undefined> {
  try {
    await using storage = await openStorage(place, { create: false });
    return await opensWith(WELL_KNOWN_PASSWORD, storage, client);
  } catch (error) {
    if (isCode(error, 'NOT_A_REPOSITORY', 'STORAGE_NOT_FOUND')) return undefined;
    throw error;
  }
}

async function opensWith(
  password: string,
  storage: BlobStorage,
  { clock }: Pick<KubeClient, 'clock'>,
): Promise<boolean> {
  try {
    await loadFormat({ storage, password: new Secret(password), clock, warn: () => undefined });
    return true;
  } catch (error) {
    if (isCode(error, 'WRONG_PASSWORD')) return false;
    throw error;
  }
}

/**
 * Explains why the Secret's password does not open a repository. Returns other errors unchanged.
 */
export async function explainWrongPassword(
  error: unknown,
  storage: BlobStorage,
  cluster: Pick<KubeClient, 'clock'>,
): Promise<unknown> {
  if (!isCode(error, 'WRONG_PASSWORD')) return error;
  if (!(await opensWith(WELL_KNOWN_PASSWORD, storage, cluster).catch(() => false))) return error;
  const text = `wrong password: ${storage.displayName} has Velero's well-known password, and Secret ${PASSWORD_SECRET} has another one. Give it that of the Secret: longshore repository change-password`;
  return new CodedError('WRONG_PASSWORD', text, { cause: error });
}

const RECREATE = (namespace: string): string =>
  `kubectl -n ${namespace} create secret generic ${PASSWORD_SECRET} --from-file=${PASSWORD_KEY}=FILE`;

const lost = (namespace: string, repository: string): CodedError =>
  new CodedError(
    'NO_PASSWORD',
    `Secret ${namespace}/${PASSWORD_SECRET} with the password of all repositories is gone, and ${repository} is in use: create it again with the password that it had: ${RECREATE(namespace)}`,
  );

const unknown = (namespace: string, example: string): CodedError =>
  new CodedError(
    'NO_PASSWORD',
    `there is no Secret ${namespace}/${PASSWORD_SECRET}, and the bucket has repositories with an unknown password (${example}). No new password is created, because it would not open them. Create the Secret with their password: ${RECREATE(namespace)}`,
  );

/** What to do about Velero's well-known password. */
export const WELL_KNOWN_REMEDY =
  'Give all repositories another one: longshore repository change-password-all';

/** Undefined without a Secret, or if this account may not read it. */
export async function isPasswordWellKnown(
  client: Pick<KubeClient, 'find'>,
  namespace: string,
  signal: AbortSignal,
): Promise<boolean | undefined> {
  try {
    const secret = await client.find(SECRETS, { namespace, name: PASSWORD_SECRET }, { signal });
    const password = passwordIn(secret, PASSWORD_KEY);
    return password === undefined ? undefined : password === WELL_KNOWN_PASSWORD;
  } catch (error) {
    if (isCode(error, 'KUBE_FORBIDDEN')) return undefined;
    throw error;
  }
}
