import { randomUUID } from 'node:crypto';
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  CodedError,
  codeOf,
  isCode,
  lookup,
  makeDirectories,
  messageOf,
  retryOf,
} from '../base/index.ts';
import {
  type BackupStorageLocation,
  bucketLocation,
  customerKeySecret,
  type LocationFiles,
  parseBackupStorageLocation,
  type StorageKind,
  storageKindOf,
} from '../config/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  type KubeClient,
  type Secret as KubeSecret,
  SECRETS,
} from '../kube/index.ts';

export interface LocationFilesOptions {
  readonly client: KubeClient;
  /** Of the location, and of the Secrets that it names. */
  readonly namespace: string;
  /** Where credentials and certificates are put for the storage's libraries to read. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly signal: AbortSignal;
}

/**
 * Files with what the Secrets of a location hold now: its credentials, and certificates of
 * authorities. Throws `NO_PASSWORD`, `BAD_STORAGE_LOCATION`, and what the API server refuses.
 */
export async function loadLocationFiles(
  options: LocationFilesOptions,
  location: BackupStorageLocation,
): Promise<LocationFiles> {
  const { credential, objectStorage } = location.spec;
  const credentialsFile = credential
    ? await loadCredentialFile(options, credential)
    : options.defaultCredentials(storageKindOf(location));
  const { caCertRef, caCert = '' } = objectStorage ?? {};
  const ca = caCertRef
    ? await secretValue(options, caCertRef).catch(wrap('error getting CA certificate from secret'))
    : Buffer.from(caCert, 'base64');
  if (ca.length === 0) return { credentialsFile };
  const { name } = location.metadata;
  return { credentialsFile, caFile: await toFile(options.directory, `${name}-ca.pem`, ca) };
}

/** A file with what a key of a Secret holds now. Throws like {@link loadLocationFiles}. */
export async function loadCredentialFile(
  options: Omit<LocationFilesOptions, 'defaultCredentials'>,
  credential: { readonly name: string; readonly key: string },
): Promise<string> {
  const value = await secretValue(options, credential).catch(wrap('unable to get credentials'));
  // No Secret and no location has `_` in its name, so that none of these files is another one's.
  return toFile(options.directory, `${credential.name}_${credential.key}`, value);
}

/**
 * A file with the 32 bytes that the objects of an S3 location are encrypted with, where it names a
 * key: of a Secret, which has no others, or of a file, which may go on (velero-plugin-for-aws
 * v1.14: readCustomerKey). Repositories are reached without. Throws like {@link loadLocationFiles}.
 */
export async function loadCustomerKeyFile(
  options: LocationFilesOptions,
  location: BackupStorageLocation,
): Promise<string | undefined> {
  const { directory } = options;
  const place = customerKeySecret(location);
  if (place) {
    const key = await secretValue(options, place).catch(wrap('unable to get the customer key'));
    if (key.length === KEY_BYTES) return toFile(directory, `${place.name}_${place.key}`, key);
    const name = `${place.name}/${place.key}`;
    throw badKey(
      `customer key from secret ${name} must be exactly 32 bytes, got ${key.length} bytes`,
    );
  }
  const { customerKeyEncryptionFile: file = '' } = location.spec.config;
  if (file === '' || storageKindOf(location) !== 's3') return undefined;
  const bytes = await readFile(file).catch((cause: unknown) => {
    throw badKey(`could not read customerKeyEncryptionFile: ${messageOf(cause)}`, cause);
  });
  if (bytes.length < KEY_BYTES) {
    throw badKey(`contents of customerKeyEncryptionFile (${file}) are not exactly 32 bytes`);
  }
  const { name } = location.metadata;
  return toFile(directory, `${name}-customer-key`, bytes.subarray(0, KEY_BYTES));
}

/** The Secrets that have to be read to open it. Throws `BAD_STORAGE_LOCATION`. */
export function secretsOf(location: BackupStorageLocation): string[] {
  const { credential, objectStorage } = location.spec;
  const places = [credential, objectStorage?.caCertRef, customerKeySecret(location)];
  return [...new Set(places.flatMap((place) => (place ? [place.name] : [])))];
}

/**
 * A BackupStorageLocation as it is now. Throws `NO_LOCATION`, `BAD_STORAGE_LOCATION`, and what the
 * API server refuses.
 */
export async function loadLocation(
  name: string,
  { client, namespace, signal }: Pick<LocationFilesOptions, 'client' | 'namespace' | 'signal'>,
): Promise<BackupStorageLocation> {
  const ref = { namespace, name };
  const found = await client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal });
  if (found) return parseBackupStorageLocation({ ...found, kind: 'BackupStorageLocation' });
  throw new CodedError('NO_LOCATION', `BackupStorageLocation.velero.io "${name}" not found`);
}

/**
 * Opens what a location names, by the credentials that its Secrets hold now. Its files are in a
 * folder of its own until it is closed. Throws like {@link loadLocationFiles}, and what opening it
 * throws.
 */
export async function openLocationBucket<B extends { close(): Promise<void> }>(
  location: BackupStorageLocation,
  options: LocationFilesOptions,
  open: (location: string) => Promise<B>,
): Promise<{ readonly bucket: B } & AsyncDisposable> {
  const directory = await mkdtemp(join(options.directory, 'bucket-'));
  const remove = (): Promise<void> => rm(directory, { recursive: true, force: true });
  try {
    const own = { ...options, directory };
    const files = {
      ...(await loadLocationFiles(own, location)),
      customerKeyFile: await loadCustomerKeyFile(own, location),
    };
    options.signal.throwIfAborted();
    const bucket = await open(bucketLocation(location, files));
    return {
      bucket,
      [Symbol.asyncDispose]: async () => {
        await bucket.close();
        await remove();
      },
    };
  } catch (error) {
    await remove();
    throw error;
  }
}

const KEY_BYTES = 32;
const badKey = (text: string, cause?: unknown): CodedError =>
  new CodedError('BAD_STORAGE_LOCATION', text, { cause });

/**
 * Of a Secret in the namespace. Throws `NO_PASSWORD` where it has no such key, and what the API
 * server refuses.
 */
export async function secretValue(
  { client, namespace, signal }: Pick<LocationFilesOptions, 'client' | 'namespace' | 'signal'>,
  { name, key }: { readonly name: string; readonly key: string },
): Promise<Buffer> {
  try {
    return valueIn(await client.get(SECRETS, { namespace, name }, { signal }), key);
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const text = `${messageOf(error)}. Longshore's accounts may read only the Secrets that their Roles name: add ${name} (docs/hardening.md, "Secrets of locations")`;
    throw new CodedError('KUBE_FORBIDDEN', text, { cause: error, retry: retryOf(error) });
  }
}

/** Throws `NO_PASSWORD` where the Secret has no such key. */
export function valueIn({ metadata, data }: KubeSecret, key: string): Buffer {
  const value = lookup(data, key);
  if (value !== undefined) return Buffer.from(value, 'base64');
  const place = `${metadata.namespace ?? ''}/${metadata.name}`;
  throw new CodedError('NO_PASSWORD', `Secret ${place} has no key "${key}"`);
}

async function toFile(directory: string, name: string, text: Buffer): Promise<string> {
  await makeDirectories(directory, 0o700);
  const file = join(directory, name);
  const before = await readFile(file).catch(() => undefined);
  if (before?.equals(text) === true) return file;
  // Whole at any time: it may be written once more while a library reads it.
  const part = `${file}.${randomUUID()}`;
  await writeFile(part, text, { mode: 0o600 });
  await rename(part, file);
  return file;
}

/**
 * Velero's words for what could not be read (pkg/persistence/object_store.go). What it means stays
 * the same.
 */
const wrap =
  (what: string) =>
  (cause: unknown): never => {
    const code = codeOf(cause) ?? 'BAD_STORAGE_LOCATION';
    const text = `${what}: ${messageOf(cause)}`;
    throw new CodedError(code, text, { cause, retry: retryOf(cause) });
  };
