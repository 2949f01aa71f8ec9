import { posix } from 'node:path';
import { z } from 'zod';
import { CodedError, lookup, parseDuration } from '../base/index.ts';

/** The fields of a BackupStorageLocation (velero.io/v1) that are read here. */
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

/** Throws `BAD_STORAGE_LOCATION` with the invalid field. */
export function parseBackupStorageLocation(object: unknown): BackupStorageLocation {
  const parsed = schema.safeParse(object);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw bad(`not a BackupStorageLocation: ${issue?.path.join('.') ?? ''}: ${issue?.message ?? ''}`);
}

/**
 * Annotation on a location whose bucket locks objects: no key is written twice. Velero's object
 * store plugins refuse unknown keys of `spec.config`, so this is an annotation.
 */
export const WRITE_ONCE = 'longshore.io/write-once';

/** Annotation on a location: only its signed backups are restored. */
export const REQUIRE_SIGNED = 'longshore.io/require-signed';

/** Annotation on a location: its backups are encrypted, and only Longshore can read them. */
export const ENCRYPT_ARCHIVE = 'longshore.io/encrypt-archive';

type Annotated = Pick<BackupStorageLocation, 'metadata'>;

/** Throws `BAD_STORAGE_LOCATION` if the annotation is neither true nor false. */
export const isWriteOnce = (location: Annotated): boolean => isSet(location, WRITE_ONCE);

/** Throws `BAD_STORAGE_LOCATION` if the annotation is neither true nor false. */
export const requiresSignature = (location: Annotated): boolean => isSet(location, REQUIRE_SIGNED);

/** Throws `BAD_STORAGE_LOCATION` if the annotation is neither true nor false. */
export const encryptsArchive = (location: Annotated): boolean => isSet(location, ENCRYPT_ARCHIVE);

function isSet({ metadata }: Annotated, annotation: string): boolean {
  const value = lookup(metadata.annotations, annotation);
  if (value === 'true') return true;
  if (value === undefined || value === 'false') return false;
  throw bad(
    `annotation ${annotation} of ${metadata.name} must be "true" or "false", not "${value}"`,
  );
}

/** On a location whose bucket locks objects: the period, such as `720h`, and {@link MODES}. */
export const RETENTION = 'longshore.io/retention';
export const RETENTION_MODE = 'longshore.io/retention-mode';
const MODES = ['GOVERNANCE', 'COMPLIANCE'] as const;
/**
 * Full maintenance of a repository extends locks. Runs are daily, and one may fail. Kopia has the
 * same minimum (repo/maintenance/maintenance_params.go).
 */
const RETENTION_HOURS_MIN = 48n;
const RETENTION_HOURS_MAX = 876_000n;
const HOUR_NS = 3_600_000_000_000n;

/** Minimum lock time of objects in a location, from each extension of the locks. */
export interface LocationRetention {
  readonly mode: (typeof MODES)[number];
  readonly periodNs: bigint;
}

/**
 * Undefined without the annotation. The default mode is `GOVERNANCE`, because `COMPLIANCE` cannot
 * be undone. Throws `BAD_STORAGE_LOCATION`.
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

/** Files with the location's secrets, written by the caller. */
export interface LocationFiles {
  readonly credentialsFile?: string | undefined;
  readonly caFile?: string | undefined;
  /** Contains the 32-byte key that the location names by a Secret or a file. */
  readonly customerKeyFile?: string | undefined;
}

export type StorageKind = 's3' | 'azblob' | 'gs' | 'file';
const BACKENDS: Record<string, StorageKind> = {
  'velero.io/aws': 's3',
  'velero.io/azure': 'azblob',
  'velero.io/gcp': 'gs',
  'velero.io/fs': 'file',
};
/** Velero's folder for repositories, below the location's own prefix. */
export const REPOSITORY_FOLDER = 'kopia';

/** The kind of storage of a location, by its provider. Throws `BAD_STORAGE_LOCATION`. */
export function storageKindOf({ spec }: Pick<BackupStorageLocation, 'spec'>): StorageKind {
  const { provider, config } = spec;
  const name = provider.includes('/') ? provider : `velero.io/${provider}`;
  const kind = lookup(BACKENDS, name) ?? (config.s3Url ? 's3' : undefined);
  if (kind !== undefined) return kind;
  const known = Object.keys(BACKENDS).join(', ');
  throw bad(`invalid storage provider "${provider}"; known are ${known}, and any with s3Url`);
}

/**
 * The location of the repository for a namespace's volumes, in the form of `openStorage`. Same
 * place as in Velero 1.18 (pkg/repository/config, pkg/repository/provider/unified_repo.go). Throws
 * `BAD_STORAGE_LOCATION`.
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
 * The location of all of Velero's files, below its own prefix, in the form of `openStorage`.
 * Supports the settings of Velero's object store plugins (velero-plugin-for-aws v1.14:
 * object_store.go), which are more than those of a repository. Throws `BAD_STORAGE_LOCATION`, in
 * Velero's words if possible (pkg/persistence/object_store.go).
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

/** The Secret with the encryption key of an S3 location (SSE-C). Throws `BAD_STORAGE_LOCATION`. */
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
  // Go's path.Join cleans the prefix of repository folders. Other keys keep the prefix unchanged.
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
 * Encodes `#` and `?` as parts of the path. Throws `BAD_STORAGE_LOCATION` for `.` and `..`: URLs
 * drop them, so the path would be another place.
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

/** Settings that only the S3 plugin reads. Repositories do not use them. */
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

/** Velero accepts an endpoint with or without a scheme. The default is TLS. */
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

/** Go's strconv.ParseBool. Velero treats invalid values as false. */
const parseGoBool = (text: string | undefined): boolean =>
  ['1', 't', 'T', 'TRUE', 'true', 'True'].includes(text ?? '');

const bad = (message: string): CodedError => new CodedError('BAD_STORAGE_LOCATION', message);
