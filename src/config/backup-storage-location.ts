import { posix } from 'node:path';
import { z } from 'zod';
import { CodedError, lookup, parseDuration } from '../base/index.ts';

/** What is looked at of a BackupStorageLocation (velero.io/v1). */
const specSchema = z.object({
  provider: z.string(),
  accessMode: z.string().optional(),
  config: z.record(z.string(), z.string()).optional().default({}),
  objectStorage: z
    .object({
      bucket: z.string().optional().default(''),
      prefix: z.string().optional().default(''),
      caCert: z.string().optional(),
      caCertRef: z.object({ name: z.string(), key: z.string() }).optional(),
    })
    .optional(),
  credential: z.object({ name: z.string(), key: z.string() }).optional(),
});
const schema = z.object({
  kind: z.literal('BackupStorageLocation'),
  metadata: z.object({
    name: z.string(),
    namespace: z.string().optional(),
    annotations: z.record(z.string(), z.string()).optional(),
  }),
  spec: specSchema,
});

export type BackupStorageLocation = z.infer<typeof schema>;

/** Throws `BAD_STORAGE_LOCATION`, naming what is wrong. */
export function parseBackupStorageLocation(object: unknown): BackupStorageLocation {
  const parsed = schema.safeParse(object);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw bad(`not a BackupStorageLocation: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? ''}`);
}

/**
 * On a location whose bucket locks objects: no key is put twice there. An annotation, since
 * Velero's object store plugins refuse a location with a key of `spec.config` that they do not
 * know.
 */
export const WRITE_ONCE = 'longshore.io/write-once';

/** On a location of which only signed backups are restored. */
export const REQUIRE_SIGNED = 'longshore.io/require-signed';

/** On a location whose backups are encrypted. Longshore alone can read them. */
export const ENCRYPT_ARCHIVE = 'longshore.io/encrypt-archive';

type Annotated = Pick<BackupStorageLocation, 'metadata'>;

/** Throws `BAD_STORAGE_LOCATION` where the annotation says something else than yes or no. */
export const isWriteOnce = (location: Annotated): boolean => isSet(location, WRITE_ONCE);

/** Throws `BAD_STORAGE_LOCATION` where the annotation says something else than yes or no. */
export const requiresSignature = (location: Annotated): boolean => isSet(location, REQUIRE_SIGNED);

/** Throws `BAD_STORAGE_LOCATION` where the annotation says something else than yes or no. */
export const encryptsArchive = (location: Annotated): boolean => isSet(location, ENCRYPT_ARCHIVE);

function isSet({ metadata }: Annotated, annotation: string): boolean {
  const value = lookup(metadata.annotations, annotation);
  if (value === 'true') return true;
  if (value === undefined || value === 'false') return false;
  throw bad(
    `annotation ${annotation} of ${metadata.name} must be "true" or "false", not "${value}"`,
  );
}

/**
 * On a location whose bucket locks objects: for how long, such as `720h`; and how, {@link MODES}.
 */
export const RETENTION = 'longshore.io/retention';
export const RETENTION_MODE = 'longshore.io/retention-mode';
const MODES = ['GOVERNANCE', 'COMPLIANCE'] as const;
/**
 * Full maintenance of a repository, which extends locks, runs once a day, and may fail once. Kopia
 * wants as much (repo/maintenance/maintenance_params.go).
 */
const RETENTION_HOURS_MIN = 48n;
const RETENTION_HOURS_MAX = 876_000n;
const HOUR_NS = 3_600_000_000_000n;

/**
 * How long what is stored in a location is to be locked at least, from each time that locks are
 * extended.
 */
export interface LocationRetention {
  readonly mode: (typeof MODES)[number];
  readonly periodNs: bigint;
}

/**
 * Undefined where the location says nothing. `GOVERNANCE` where it names no mode, since nobody can
 * undo the other one. Throws `BAD_STORAGE_LOCATION`.
 */
export function retentionOf({
  metadata: { name, annotations = {} },
}: Pick<BackupStorageLocation, 'metadata'>): LocationRetention | undefined {
  const { [RETENTION]: text, [RETENTION_MODE]: asked = 'GOVERNANCE' } = annotations;
  const mode = MODES.find((each) => each === asked.toUpperCase());
  if (mode === undefined) {
    throw bad(
      `annotation ${RETENTION_MODE} of ${name} must be one of ${MODES.join(', ')}, not "${asked}"`,
    );
  }
  if (text === undefined) return undefined;
  const periodNs = parseDuration(text);
  const hours = (periodNs ?? 0n) / HOUR_NS;
  if (periodNs !== undefined && hours >= RETENTION_HOURS_MIN && hours <= RETENTION_HOURS_MAX) {
    return { mode, periodNs: hours * HOUR_NS };
  }
  throw bad(
    `annotation ${RETENTION} of ${name} must be a duration from ${RETENTION_HOURS_MIN}h to ${RETENTION_HOURS_MAX}h, such as 720h, not "${text}"`,
  );
}

/** Files that the caller has made of the location's secrets. */
export interface LocationFiles {
  readonly credentialsFile?: string | undefined;
  readonly caFile?: string | undefined;
  /** With the 32 bytes of the key that the location names by a Secret or a file. */
  readonly customerKeyFile?: string | undefined;
}

export type StorageKind = 's3' | 'azblob' | 'gs' | 'file';
const BACKENDS: Record<string, StorageKind> = {
  'velero.io/aws': 's3',
  'velero.io/azure': 'azblob',
  'velero.io/gcp': 'gs',
  'velero.io/fs': 'file',
};
/** Where Velero puts the repository of a namespace, below the location's own prefix. */
export const REPOSITORY_FOLDER = 'kopia';

/** What serves a location, by its provider. Throws `BAD_STORAGE_LOCATION`. */
export function storageKindOf({ spec }: Pick<BackupStorageLocation, 'spec'>): StorageKind {
  const { provider, config } = spec;
  const name = provider.includes('/') ? provider : `velero.io/${provider}`;
  const kind = lookup(BACKENDS, name) ?? (config.s3Url ? 's3' : undefined);
  if (kind !== undefined) return kind;
  const known = Object.keys(BACKENDS).join(', ');
  throw bad(`invalid storage provider "${provider}"; known are ${known}, and any with s3Url`);
}

/**
 * Where the repository of a namespace's volumes is, as a location that `openStorage` takes: the
 * same place that Velero 1.18 uses (pkg/repository/config,
 * pkg/repository/provider/unified_repo.go). Throws `BAD_STORAGE_LOCATION`.
 */
export function repositoryLocation(
  location: BackupStorageLocation,
  volumeNamespace: string,
  files: LocationFiles = {},
): string {
  if (!/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(volumeNamespace)) {
    throw bad(`"${volumeNamespace}" is not the name of a namespace`);
  }
  const once = isWriteOnce(location) && storageKindOf(location) !== 'file';
  const more = once ? { writeOnce: 'true' } : {};
  return locationUrl(location, [REPOSITORY_FOLDER, volumeNamespace], files, more);
}

/**
 * Where all that Velero keeps of a location is, its own prefix, as `openStorage` takes it. The
 * settings are those of Velero's object store plugins (velero-plugin-for-aws v1.14:
 * object_store.go), which mean more than those of a repository. Throws `BAD_STORAGE_LOCATION`, in
 * Velero's words where it has some (pkg/persistence/object_store.go).
 */
export function bucketLocation(location: BackupStorageLocation, files: LocationFiles = {}): string {
  const { provider, objectStorage, config } = location.spec;
  if (objectStorage?.caCert !== undefined && objectStorage.caCertRef !== undefined) {
    throw bad('cannot specify both caCert and caCertRef in objectStorage');
  }
  if (provider === '') throw bad('object storage provider name must not be empty');
  const kind = storageKindOf(location);
  if (kind !== 'file') {
    if (!objectStorage) throw bad('backup storage location does not use object storage');
    if (trimSlashes(objectStorage.bucket).includes('/')) {
      const text = `backup storage location's bucket name "${objectStorage.bucket}" must not contain a '/' (if using a prefix, put it in the 'Prefix' field instead)`;
      throw bad(text);
    }
  }
  return locationUrl(location, [], files, kind === 's3' ? s3StoreParameters(config, files) : {});
}

/**
 * The Secret that holds the key which the objects of an S3 location are encrypted with (SSE-C).
 * Throws `BAD_STORAGE_LOCATION`.
 */
export function customerKeySecret(
  location: BackupStorageLocation,
): { readonly name: string; readonly key: string } | undefined {
  const reference = location.spec.config.customerKeyEncryptionSecret ?? '';
  if (reference === '' || storageKindOf(location) !== 's3') return undefined;
  const [name = '', key = '', ...rest] = reference.split('/');
  if (name !== '' && key !== '' && rest.length === 0) return { name, key };
  throw bad(`invalid secret reference format: ${reference}, expected secretName/key`);
}

function locationUrl(
  { spec, metadata }: BackupStorageLocation,
  folders: readonly string[],
  files: LocationFiles,
  more: Parameters = {},
): string {
  const { config, objectStorage } = spec;
  const backend = storageKindOf({ spec });
  const bucket = trimSlashes(objectStorage ? objectStorage.bucket : (config.bucket ?? ''));
  const prefix = trimSlashes(objectStorage ? objectStorage.prefix : (config.prefix ?? ''));
  // The folders of a repository are joined with the prefix as Go's path.Join does, which tidies it;
  // other keys have it as it is.
  const path = folders.length === 0 ? prefix : posix.join(prefix, ...folders);
  if (backend === 'file') {
    const root = config.fspath ?? '';
    if (!root.startsWith('/')) throw bad(`fspath "${root}" of ${metadata.name} is not absolute`);
    return `file://${encodedPath(`${root.replace(/\/+$/, '')}/${path === '' ? '' : `${path}/`}`)}`;
  }
  if (bucket === '') throw bad(`${metadata.name} names no bucket`);
  const parameters = {
    ...{ s3: s3Parameters, azblob: azureParameters, gs: gcsParameters }[backend](config, files),
    ...more,
  };
  const query = new URLSearchParams(
    Object.entries(parameters).filter((pair): pair is [string, string] => !!pair[1]),
  ).toString();
  const folder = path === '' ? '' : `${encodedPath(path)}/`;
  return `${backend}://${bucket}/${folder}${query === '' ? '' : `?${query}`}`;
}

/**
 * A `#` or `?` is a part of the path. Throws `BAD_STORAGE_LOCATION` for parts that a URL leaves
 * out: it would be another place.
 */
function encodedPath(path: string): string {
  const parts = path.split('/');
  if (parts.includes('.') || parts.includes('..')) {
    throw bad(`"${path}" must not have a part "." or ".."`);
  }
  return parts.map(encodeURIComponent).join('/');
}

type Parameters = Record<string, string | undefined>;
type Config = BackupStorageLocation['spec']['config'];

function s3Parameters(config: Config, files: LocationFiles): Parameters {
  return {
    region: config.region === undefined ? undefined : trimSlashes(config.region),
    endpoint:
      config.s3Url === undefined || config.s3Url === '' ? undefined : endpointOf(config.s3Url),
    profile: config.profile,
    credentialsFile: files.credentialsFile,
    caFile: files.caFile,
    insecureTls: parseGoBool(config.insecureSkipTLSVerify) ? 'true' : undefined,
  };
}

/** What the plugin for S3 looks at besides; a repository is reached without. */
function s3StoreParameters(config: Config, { customerKeyFile }: LocationFiles): Parameters {
  const { publicUrl, s3ForcePathStyle, kmsKeyId } = config;
  const { customerKeyEncryptionFile, customerKeyEncryptionSecret } = config;
  const keys = [kmsKeyId, customerKeyEncryptionFile, customerKeyEncryptionSecret];
  if (keys.filter(Boolean).length > 1) {
    const text =
      'you can only use one of: kmsKeyId, customerKeyEncryptionFile, or customerKeyEncryptionSecret';
    throw bad(text);
  }
  const encryption = kmsKeyId ? 'aws:kms' : config.serverSideEncryption;
  return {
    publicEndpoint: publicUrl ? endpointOf(publicUrl, 'publicUrl') : undefined,
    pathStyle: parseGoBool(s3ForcePathStyle) ? 'true' : 'false',
    sseCustomerKeyFile: customerKeyFile ?? customerKeyEncryptionFile,
    sse: encryption,
    kmsKeyId,
  };
}

/** Velero takes an endpoint with or without a scheme; without one it is TLS. */
function endpointOf(text: string, name = 's3Url'): string {
  let url: URL;
  try {
    url = new URL(/^https?:\/\//.test(text) ? text : `https://${text}`);
  } catch {
    throw bad(`${name} "${text}" is not a URL`);
  }
  if (url.pathname !== '/' && url.pathname !== '') {
    throw bad(`${name} must not have a path: ${text}`);
  }
  return url.origin;
}

function azureParameters(config: Config, files: LocationFiles): Parameters {
  return {
    account: config.storageAccount,
    endpoint: config.storageAccountURI,
    credentialsFile: files.credentialsFile,
    keyVariable: config.storageAccountKeyEnvVar,
    useAad: parseGoBool(config.useAAD) ? 'true' : undefined,
    subscriptionId: config.subscriptionId,
    resourceGroup: config.resourceGroup,
    caFile: files.caFile,
  };
}

const gcsParameters = (_config: Config, files: LocationFiles): Parameters => ({
  credentialsFile: files.credentialsFile,
});

const trimSlashes = (text: string): string => text.replaceAll(/^\/+|\/+$/g, '');

/** Go's strconv.ParseBool; anything else is false, as Velero reads it. */
const parseGoBool = (text: string | undefined): boolean =>
  ['1', 't', 'T', 'TRUE', 'true', 'True'].includes(text ?? '');

const bad = (message: string): CodedError => new CodedError('BAD_STORAGE_LOCATION', message);
