import { z } from 'zod';
import {
  asBuffer,
  type Clock,
  CodedError,
  goJson,
  isCode,
  parseJsonLossless,
  type RandomBytes,
  randomBytes,
  type Secret,
} from '../../base/index.ts';
import { type BlobId, blobId, type BlobStorage, type PutOptions } from '../../blob/index.ts';
import { hashBytesOf, splitterSpec } from '../../codec/index.ts';
import { deriveFormatKey, openFormat, SCRYPT, sealFormat } from './keys.ts';
import {
  assertSupported,
  DEFAULT_EPOCH_PARAMETERS,
  parametersSchema,
  type RepositoryParameters,
} from './parameters.ts';

export const FORMAT_BLOB = blobId('kopia.repository');
export const BLOBCFG_BLOB = blobId('kopia.blobcfg');

/** The plain part of kopia.repository. Field order is Kopia's; unknown fields are kept. */
const formatBlobSchema = z.looseObject({
  tool: z.string().optional(),
  buildVersion: z.string().optional(),
  buildInfo: z.string().optional(),
  uniqueID: z.base64(),
  keyAlgo: z.string(),
  encryption: z.string(),
  encryptedBlockFormat: z.base64(),
});
type FormatBlob = z.infer<typeof formatBlobSchema>;

const blobcfgSchema = z.looseObject({
  retentionMode: z.enum(['GOVERNANCE', 'COMPLIANCE', '']).optional().default(''),
  retentionPeriod: z.union([z.number(), z.bigint()]).optional().default(0),
});

/** An opened format: keys and parameters. Holds secrets; never log it. */
export interface Format {
  readonly uniqueId: Uint8Array;
  /** Derived from the password. */
  readonly formatKey: Uint8Array;
  readonly keyAlgorithm: string;
  readonly parameters: RepositoryParameters;
  /** kopia.repository as stored, for the replica in packs of old repositories. */
  readonly formatBlobBytes: Uint8Array;
  /** Options of every put whose blob id object lock covers. */
  readonly retention: PutOptions['retention'];
}

export interface OpenFormatOptions {
  storage: BlobStorage;
  password: Secret;
  clock: Clock;
  warn: (message: string) => void;
}

/** Loads and decrypts. Throws `NOT_A_REPOSITORY`, `WRONG_PASSWORD`, `DAMAGED_BLOB`, `UNSUPPORTED_REPOSITORY`, `REPOSITORY_LOCKED`. */
export async function loadFormat(options: OpenFormatOptions): Promise<Format> {
  const { storage, password, clock, warn } = options;
  const bytes = await loadFormatBlob(storage);
  const { blob, uniqueId, sealed } = parseFormatBlob(bytes);
  const formatKey = await deriveFormatKey(password, blob.keyAlgo, uniqueId);
  const parameters = parseParameters(openInner(formatKey, uniqueId, sealed));
  assertSupported(parameters, { nowNs: clock.nowNs(), warn });
  assertKeysFit(parameters);
  const retention = await loadRetention(storage, formatKey, uniqueId);
  return {
    uniqueId,
    formatKey,
    keyAlgorithm: blob.keyAlgo,
    parameters,
    formatBlobBytes: bytes,
    retention,
  };
}

async function loadFormatBlob(storage: BlobStorage): Promise<Uint8Array> {
  try {
    return await storage.getBlob(FORMAT_BLOB);
  } catch (cause) {
    if (!isCode(cause, 'BLOB_NOT_FOUND')) throw cause;
    const text = `${storage.displayName} is not a repository: blob ${FORMAT_BLOB} is missing`;
    throw new CodedError('NOT_A_REPOSITORY', text, { cause });
  }
}

function damaged(id: BlobId, what: string, cause?: unknown): CodedError {
  return new CodedError('DAMAGED_BLOB', `blob ${id} is damaged: ${what}`, {
    cause,
    facts: { blobId: id },
  });
}

function parseFormatBlob(bytes: Uint8Array): {
  blob: FormatBlob;
  uniqueId: Uint8Array;
  sealed: Uint8Array;
} {
  let blob: FormatBlob;
  try {
    blob = formatBlobSchema.parse(JSON.parse(asBuffer(bytes).toString('utf8')));
  } catch (cause) {
    throw damaged(FORMAT_BLOB, 'it is not the JSON of a repository format', cause);
  }
  const uniqueId = Buffer.from(blob.uniqueID, 'base64');
  if (uniqueId.length < 16) throw damaged(FORMAT_BLOB, 'its unique id is too short');
  if (blob.encryption !== 'AES256_GCM') {
    const text = `blob ${FORMAT_BLOB} is encrypted with "${blob.encryption}", which is not known`;
    throw new CodedError('UNSUPPORTED_REPOSITORY', text);
  }
  return { blob, uniqueId, sealed: Buffer.from(blob.encryptedBlockFormat, 'base64') };
}

function openInner(key: Uint8Array, uniqueId: Uint8Array, sealed: Uint8Array): Uint8Array {
  try {
    return openFormat(key, uniqueId, sealed);
  } catch (cause) {
    // Damage and a wrong key look alike to AES-GCM, and the password is the likelier of the two.
    throw new CodedError(
      'WRONG_PASSWORD',
      `wrong password (or blob ${FORMAT_BLOB} is damaged): its encrypted part cannot be opened`,
      { cause, facts: { blobId: FORMAT_BLOB } },
    );
  }
}

function parseParameters(plaintext: Uint8Array): RepositoryParameters {
  try {
    const outer = parseJsonLossless(asBuffer(plaintext).toString('utf8'));
    return z.looseObject({ format: parametersSchema }).parse(outer).format;
  } catch (cause) {
    throw damaged(FORMAT_BLOB, 'its parameters are not valid', cause);
  }
}

/** Key lengths that the hash could not use would fail late, in a worker. */
function assertKeysFit({ hash, secret, masterKey }: RepositoryParameters): void {
  const secretMax = hash.startsWith('BLAKE2S') ? 32 : 64;
  if (secret.length === 0 || (hash.startsWith('BLAKE2') && secret.length > secretMax)) {
    throw damaged(FORMAT_BLOB, `its hash secret has ${secret.length} bytes`);
  }
  if (masterKey.length === 0) throw damaged(FORMAT_BLOB, 'its master key is empty');
}

async function loadRetention(
  storage: BlobStorage,
  formatKey: Uint8Array,
  uniqueId: Uint8Array,
): Promise<PutOptions['retention']> {
  let sealed: Uint8Array;
  try {
    sealed = await storage.getBlob(BLOBCFG_BLOB);
  } catch (error) {
    // Repositories made before object lock existed have none.
    if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
    throw error;
  }
  let config: z.infer<typeof blobcfgSchema>;
  try {
    const plaintext = openFormat(formatKey, uniqueId, sealed);
    config = blobcfgSchema.parse(parseJsonLossless(plaintext.toString('utf8')));
  } catch (cause) {
    throw damaged(BLOBCFG_BLOB, 'it cannot be decrypted', cause);
  }
  const periodNs = BigInt(config.retentionPeriod);
  if (config.retentionMode === '' && periodNs === 0n) return undefined;
  if (config.retentionMode === '' || periodNs <= 0n) {
    throw damaged(BLOBCFG_BLOB, 'retention mode and period do not belong together');
  }
  return { mode: config.retentionMode, periodNs };
}

export interface NewFormat {
  hash: string;
  encryption: string;
  splitter: string;
  /** 1 is for tests of old repositories only; the command line offers 2 and 3. */
  version: 1 | 2 | 3;
}

/**
 * Makes the two format blobs in an empty storage, blobcfg first as Kopia does.
 * Throws `STORAGE_NOT_EMPTY`, `REPOSITORY_EXISTS`.
 */
export async function createFormat(
  storage: BlobStorage,
  password: Secret,
  options: NewFormat,
  random: RandomBytes = randomBytes,
): Promise<void> {
  hashBytesOf(options.hash);
  splitterSpec(options.splitter);
  await assertEmpty(storage);
  const uniqueId = random(32);
  const formatKey = await deriveFormatKey(password, SCRYPT, uniqueId);
  const legacy = options.version === 1;
  const inner = {
    format: {
      hash: options.hash,
      encryption: options.encryption,
      secret: toBase64(random(32)),
      masterKey: toBase64(random(32)),
      version: options.version,
      maxPackSize: 20 << 20,
      indexVersion: legacy ? 1 : 2,
      epochParameters: legacy ? zeroed(DEFAULT_EPOCH_PARAMETERS) : DEFAULT_EPOCH_PARAMETERS,
      enablePasswordChange: !legacy,
      splitter: options.splitter,
    },
  };
  const sealed = sealFormat(formatKey, uniqueId, Buffer.from(goJson(inner)));
  const outer: FormatBlob = {
    tool: 'https://github.com/kopia/kopia',
    buildVersion: 'longshore',
    buildInfo: 'longshore',
    uniqueID: toBase64(uniqueId),
    keyAlgo: SCRYPT,
    encryption: 'AES256_GCM',
    encryptedBlockFormat: toBase64(sealed),
  };
  await storage.putBlob(BLOBCFG_BLOB, [sealFormat(formatKey, uniqueId, Buffer.from('{}'))]);
  await storage.putBlob(FORMAT_BLOB, [serializeFormatBlob(outer)]);
}

async function assertEmpty(storage: BlobStorage): Promise<void> {
  for await (const { id } of storage.listBlobs('kopia.')) {
    if (id !== FORMAT_BLOB && id !== BLOBCFG_BLOB) continue;
    const text = `there is a repository in ${storage.displayName} already`;
    throw new CodedError('REPOSITORY_EXISTS', text);
  }
  for await (const { id } of storage.listBlobs('')) {
    const text = `${storage.displayName} is not empty (it holds ${id}): choose another place`;
    throw new CodedError('STORAGE_NOT_EMPTY', text);
  }
}

/**
 * Re-encrypts both format blobs under a new password, blobcfg first, so that an interruption leaves
 * a repository that still opens with the old one. Throws `PASSWORD_CHANGE_UNSUPPORTED`.
 */
export async function changePassword(
  storage: BlobStorage,
  format: Format,
  newPassword: Secret,
): Promise<void> {
  if (!format.parameters.enablePasswordChange) {
    const text = 'the password of this repository cannot be changed: its format is too old';
    throw new CodedError('PASSWORD_CHANGE_UNSUPPORTED', text);
  }
  const { blob, uniqueId, sealed } = parseFormatBlob(await loadFormatBlob(storage));
  const inner = openInner(format.formatKey, uniqueId, sealed);
  const newKey = await deriveFormatKey(newPassword, blob.keyAlgo, uniqueId);
  const blobcfg = await storage.getBlob(BLOBCFG_BLOB).catch((error: unknown) => {
    if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
    throw error;
  });
  if (blobcfg) {
    const plaintext = openFormat(format.formatKey, uniqueId, blobcfg);
    await storage.putBlob(BLOBCFG_BLOB, [sealFormat(newKey, uniqueId, plaintext)]);
  }
  const encryptedBlockFormat = toBase64(sealFormat(newKey, uniqueId, inner));
  const changed = serializeFormatBlob({ ...blob, encryptedBlockFormat });
  try {
    await storage.putBlob(FORMAT_BLOB, [changed]);
  } catch (error) {
    // The old password must go on working: put the old settings back before reporting.
    if (blobcfg) await storage.putBlob(BLOBCFG_BLOB, [blobcfg]);
    throw error;
  }
}

function serializeFormatBlob(blob: FormatBlob): Uint8Array {
  return Buffer.from(`${JSON.stringify(blob, null, 2)}\n`);
}

function zeroed(parameters: object): Record<string, number | boolean> {
  return Object.fromEntries(
    Object.entries(parameters).map(([key, value]) => [key, typeof value === 'boolean' ? false : 0]),
  );
}

const toBase64 = (bytes: Uint8Array): string => asBuffer(bytes).toString('base64');
