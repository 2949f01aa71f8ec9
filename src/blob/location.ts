import { isAbsolute, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { CodedError, lookup, messageOf } from '../base/index.ts';

/** Schemas of the query parameters. `--help` and docs/storage.md follow them. */
const flag = z.enum(['true', 'false']).transform((text) => text === 'true');
const text = z.string().min(1);
const endpoint = z.url({ protocol: /^https?$/ });

const tls = {
  /** PEM file with additional trusted authorities. */
  caFile: text.optional(),
  /** Trusts any certificate: for tests only. */
  insecureTls: flag.optional(),
};

/** For buckets with object lock: no blob is put twice. */
const once = { writeOnce: flag.optional() };

const s3Schema = z.strictObject({
  region: text.optional(),
  endpoint: endpoint.optional(),
  /** The endpoint in URLs for others; default: `endpoint`. */
  publicEndpoint: endpoint.optional(),
  /** `http://host/bucket/key` instead of `http://bucket.host/key`; default with an endpoint. */
  pathStyle: flag.optional(),
  profile: text.optional(),
  /** A file in the format of ~/.aws/credentials. */
  credentialsFile: text.optional(),
  ...tls,
  storageClass: text.optional(),
  sse: z.enum(['AES256', 'aws:kms']).optional(),
  kmsKeyId: text.optional(),
  /** File with the 32 bytes of an SSE-C key, raw or in base64. */
  sseCustomerKeyFile: text.optional(),
  /** Sent with each put. `auto`: CRC-32, and MD5 for services that support no other. */
  checksum: z.enum(['auto', 'crc32', 'sha256', 'md5', 'none']).optional(),
  ...once,
});

const azureSchema = z.strictObject({
  account: text.optional(),
  endpoint: endpoint.optional(),
  /** A dotenv file, as for Velero's plugin for Azure. */
  credentialsFile: text.optional(),
  /** Environment variable, or line of the file, with the account's key. */
  keyVariable: text.optional(),
  useAad: flag.optional(),
  subscriptionId: text.optional(),
  resourceGroup: text.optional(),
  caFile: tls.caFile,
  ...once,
});

const gcsSchema = z.strictObject({
  endpoint: endpoint.optional(),
  /** JSON of a service account or of workload identity federation. */
  credentialsFile: text.optional(),
  ...tls,
  ...once,
});

interface Bucket {
  readonly bucket: string;
  /** Ends with `/`, or is empty. */
  readonly prefix: string;
  /** The place, without secrets and details. */
  readonly displayName: string;
}

export type S3Location = Bucket & { readonly kind: 's3' } & z.infer<typeof s3Schema>;
export type AzureLocation = Bucket & { readonly kind: 'azblob' } & z.infer<typeof azureSchema>;
export type GcsLocation = Bucket & { readonly kind: 'gs' } & z.infer<typeof gcsSchema>;
export interface FileLocation {
  readonly kind: 'file';
  readonly path: string;
  readonly displayName: string;
}
export type Location = FileLocation | S3Location | AzureLocation | GcsLocation;

export const SCHEMES = ['file', 's3', 'azblob', 'gs'] as const;

/** A bucket of a Ceph tenant: `s3://tenant:bucket`. A port would have only digits. */
const TENANT = /^s3:\/\/[\w.-]*:(?=[\w.-]*[A-Za-z_.-][\w.-]*(?:[/?#]|$))/;
/** A tenant may precede the bucket. */
const BUCKET_NAME = /^([\w.-]*:)?[\w.-]+$/;

const urlOf = (location: string): URL =>
  new URL(location.replace(TENANT, (start) => `${start.slice(0, -1)}%3A`));

/** Parameters with secrets, which `ps` and logs would show. */
const SECRETS = /^(access.?key|secret|password|token|sas|account.?key|key)/i;

/**
 * Reads a path or a URL: `s3://bucket/prefix/?region=…`, `azblob://container/prefix/?account=…`,
 * `gs://bucket/prefix/`, `file:///path`. Throws `BAD_LOCATION`.
 */
export function parseLocation(location: string): Location {
  if (location === '') throw bad('the location of the repository is empty');
  if (!/^[a-z][a-z0-9+.-]+:/.test(location)) return fileLocation(resolve(location));
  let url: URL;
  try {
    url = urlOf(location);
  } catch {
    throw bad(`"${location}" is not a path or a storage URL`);
  }
  switch (url.protocol) {
    case 'file:':
      if (url.host !== '') throw bad(`"${location}" is not a path or a storage URL`);
      return fileLocation(filePathOf(url));
    case 's3:':
      return { kind: 's3', ...bucketOf(url), ...parametersOf(url, s3Schema) };
    case 'azblob:':
      return { kind: 'azblob', ...bucketOf(url), ...parametersOf(url, azureSchema) };
    case 'gs:':
      return { kind: 'gs', ...bucketOf(url), ...parametersOf(url, gcsSchema) };
    default: {
      const known = SCHEMES.map((scheme) => `${scheme}://`).join(', ');
      throw bad(`storage scheme "${url.protocol}//" is not known; use a path or ${known}`);
    }
  }
}

/** Path settings of all kinds of locations. */
const PATHS = ['credentialsFile', 'caFile', 'sseCustomerKeyFile'];

/** The same location, independent of the current directory. Throws `BAD_LOCATION`. */
export function absoluteLocation(text: string): string {
  const location = parseLocation(text);
  if (location.kind === 'file') return location.path;
  const url = urlOf(text);
  const relative = PATHS.flatMap((name) => {
    const path = url.searchParams.get(name);
    return path === null || isAbsolute(path) ? [] : [[name, path] as const];
  });
  for (const [name, path] of relative) url.searchParams.set(name, resolve(path));
  return relative.length > 0 ? url.href : text;
}

const fileLocation = (path: string): FileLocation => ({
  kind: 'file',
  path,
  displayName: `file://${path}`,
});

function bucketOf(url: URL): Bucket {
  if (url.username !== '' || url.password !== '' || url.port !== '') {
    throw bad(
      `"${url.protocol}//…" must not have a user, a password or a port; use credentialsFile and endpoint`,
    );
  }
  if (url.host === '') throw bad(`"${url.href}" names no bucket`);
  const path = decodedPath(url).replaceAll(/^\/+|\/+$/g, '');
  const prefix = path === '' ? '' : `${path}/`;
  const bucket = bucketNameOf(url);
  return { bucket, prefix, displayName: `${url.protocol}//${bucket}/${prefix}` };
}

function bucketNameOf({ protocol, host }: URL): string {
  const name = protocol === 's3:' ? host.replace(/%3a/i, ':') : host;
  if (protocol !== 's3:' || BUCKET_NAME.test(name)) return name;
  throw bad(`"${host}" cannot be the name of a bucket`);
}

/** A `%` without two hex digits should have been `%25`. */
function decodedPath(url: URL): string {
  try {
    return decodeURIComponent(url.pathname);
  } catch {
    throw bad(
      `"${url.protocol}//${url.host}${url.pathname}" has a % that does not begin an escaped character: write %25 for a percent sign`,
    );
  }
}

function filePathOf(url: URL): string {
  decodedPath(url);
  try {
    return fileURLToPath(url);
  } catch (cause) {
    throw bad(`"${url.protocol}//${url.pathname}" is not a path: ${messageOf(cause)}`);
  }
}

function parametersOf<S extends z.ZodType>(url: URL, schema: S): z.infer<S> {
  const given = Object.fromEntries(url.searchParams);
  const secret = Object.keys(given).find((name) => SECRETS.test(name) && name !== 'keyVariable');
  if (secret !== undefined) {
    throw bad(
      `"${secret}" must not be part of a location, where others can see it; use credentialsFile`,
    );
  }
  const parsed = schema.safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  if (issue?.code === 'unrecognized_keys') {
    const known = Object.keys((schema as unknown as z.ZodObject).shape).join(', ');
    throw bad(
      `"${issue.keys.join(', ')}" is not a setting of ${url.protocol}// locations; its settings are ${known}`,
    );
  }
  const name = issue?.path.join('.') ?? '';
  throw bad(
    `"${lookup(given, name) ?? ''}" cannot be the ${name} of a location: ${issue?.message ?? ''}`,
  );
}

const bad = (message: string): CodedError => new CodedError('BAD_LOCATION', message);
