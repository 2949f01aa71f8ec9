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
  SERVICE_ACCOUNTS,
  SUBJECT_ACCESS_REVIEWS,
} from '../kube/index.ts';

export interface LocationFilesOptions {
  readonly client: KubeClient;
  /** Namespace of the location and its Secrets. */
  readonly namespace: string;
  /** Directory for credentials and certificates, which storage libraries read from files. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  readonly signal: AbortSignal;
}

/**
 * Writes the current Secrets of a location to files: credentials and CA certificates. Throws
 * `NO_PASSWORD`, `BAD_STORAGE_LOCATION`, and API server errors.
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

/** Writes the current value of a Secret's key to a file. Throws like {@link loadLocationFiles}. */
export async function loadCredentialFile(
  options: Omit<LocationFilesOptions, 'defaultCredentials'>,
  credential: { readonly name: string; readonly key: string },
): Promise<string> {
  const value = await secretValue(options, credential).catch(wrap('unable to get credentials'));
  // Names of Secrets and locations cannot contain `_`, so file names do not collide.
  return toFile(options.directory, `${credential.name}_${credential.key}`, value);
}

/**
 * Writes the 32-byte customer key of an S3 location to a file. Undefined if the location has none.
 * A key in a Secret must have exactly 32 bytes. A key file may be longer (velero-plugin-for-aws
 * v1.14: readCustomerKey). Repositories do not use it. Throws like {@link loadLocationFiles}.
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

/** The Secrets needed to open a location. Throws `BAD_STORAGE_LOCATION`. */
export function secretsOf(location: BackupStorageLocation): string[] {
  const { credential, objectStorage } = location.spec;
  const places = [credential, objectStorage?.caCertRef, customerKeySecret(location)];
  return [...new Set(places.flatMap((place) => (place ? [place.name] : [])))];
}

/** The current location. Throws `NO_LOCATION`, `BAD_STORAGE_LOCATION`, and API server errors. */
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
 * Opens the bucket of a location with the current Secrets. Its files are in their own folder until
 * it is closed. Throws like {@link loadLocationFiles}, and errors of `open`.
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

/** A key's value in a Secret. Throws `NO_PASSWORD` if the key is missing, and API errors. */
export async function secretValue(
  { client, namespace, signal }: Pick<LocationFilesOptions, 'client' | 'namespace' | 'signal'>,
  { name, key }: { readonly name: string; readonly key: string },
): Promise<Buffer> {
  try {
    return valueIn(await client.get(SECRETS, { namespace, name }, { signal }), key);
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
    const text = `${messageOf(error)}. Longshore's accounts may read only the Secrets that their Roles name. To add this Secret, run: ${grantCommand(namespace, name)}`;
    throw new CodedError('KUBE_FORBIDDEN', text, { cause: error, retry: retryOf(error) });
  }
}

/** Accounts that open locations. An overlay or a chart may lack some. */
const READERS = ['data-mover', 'repo-maintenance', 'server', 'verify', 'change-password'];

/** Command that lets Longshore's accounts read a Secret. */
export function grantCommand(namespace: string, secret: string): string {
  const role = `longshore-reads-${secret}`;
  const accounts = READERS.map((name) => `--serviceaccount=${namespace}:longshore-${name}`);
  return [
    `kubectl -n ${namespace} create role ${role} --verb=get --resource=secrets --resource-name=${secret}`,
    `kubectl -n ${namespace} create rolebinding ${role} --role=${role} ${accounts.join(' ')}`,
  ].join(' && ');
}

/**
 * Secrets of a location that accounts of Longshore cannot read, as after an upgrade from a version
 * that could read all. Empty if the caller may not ask. Throws `BAD_STORAGE_LOCATION`, `KUBE_*`.
 */
export async function unreadableSecrets(
  location: BackupStorageLocation,
  { client, namespace, signal }: Pick<LocationFilesOptions, 'client' | 'namespace' | 'signal'>,
): Promise<string[]> {
  const isReadable = async (account: string, name: string): Promise<boolean> => {
    if (!(await client.find(SERVICE_ACCOUNTS, { namespace, name: account }, { signal })))
      return true;
    const review = {
      metadata: {},
      spec: {
        user: `system:serviceaccount:${namespace}:${account}`,
        groups: ['system:serviceaccounts', `system:serviceaccounts:${namespace}`],
        resourceAttributes: { namespace, verb: 'get', group: '', resource: 'secrets', name },
      },
    };
    const { status } = await client.create(SUBJECT_ACCESS_REVIEWS, review, { signal });
    return status?.allowed !== false;
  };
  const found: string[] = [];
  try {
    for (const name of secretsOf(location)) {
      for (const reader of READERS) {
        if (found.includes(name) || (await isReadable(`longshore-${reader}`, name))) continue;
        found.push(name);
      }
    }
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN', 'KUBE_NOT_FOUND')) throw error;
  }
  return found;
}

/** Throws `NO_PASSWORD` if the Secret lacks the key. */
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
  // Replace the file atomically, because a library may be reading it.
  const part = `${file}.${randomUUID()}`;
  await writeFile(part, text, { mode: 0o600 });
  await rename(part, file);
  return file;
}

/** Prefixes an error with Velero's words (pkg/persistence/object_store.go). Keeps its code. */
const wrap =
  (what: string) =>
  (cause: unknown): never => {
    const code = codeOf(cause) ?? 'BAD_STORAGE_LOCATION';
    const text = `${what}: ${messageOf(cause)}`;
    throw new CodedError(code, text, { cause, retry: retryOf(cause) });
  };
