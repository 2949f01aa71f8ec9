import { z } from 'zod';
import {
  asBuffer,
  type Clock,
  CodedError,
  isCode,
  parseJsonLossless,
  type Secret,
} from '../../base/index.ts';
import { type BlobId, blobId, type BlobStorage, type PutOptions } from '../../blob/index.ts';
import { deriveFormatKey, openFormat } from './keys.ts';
import { assertSupported, parametersSchema, type RepositoryParameters } from './parameters.ts';
import {
  FORMAT_BYTES_MAX,
  isTorn,
  loadCopiedBlobcfg,
  loadRecoveryCopies,
} from './recovery-copy.ts';

export const FORMAT_BLOB = blobId('kopia.repository');
export const BLOBCFG_BLOB = blobId('kopia.blobcfg');

/** Name prefix of the blob that an upgrade to format 3 puts to make old programs fail. */
const POISON_PREFIX = 'n00000000000000000000000000000000-';

/** The unencrypted part of kopia.repository. Field order is Kopia's. Unknown fields are kept. */
const formatBlobSchema = z.looseObject({
  tool: z.string().optional(),
  buildVersion: z.string().optional(),
  buildInfo: z.string().optional(),
  uniqueID: z.base64(),
  keyAlgo: z.string(),
  encryption: z.string(),
  encryptedBlockFormat: z.base64(),
});
export type FormatBlob = z.infer<typeof formatBlobSchema>;

const blobcfgSchema = z.looseObject({
  retentionMode: z.enum(['GOVERNANCE', 'COMPLIANCE', '']).optional().default(''),
  retentionPeriod: z.union([z.number(), z.bigint()]).optional().default(0),
});

/** An opened format with keys and parameters. Contains secrets: never log it. */
export interface Format {
  readonly uniqueId: Uint8Array;
  /** Derived from the password. */
  readonly formatKey: Uint8Array;
  readonly keyAlgorithm: string;
  readonly parameters: RepositoryParameters;
  /** kopia.repository as stored. Packs of old repositories contain a replica of it. */
  readonly formatBlobBytes: Uint8Array;
  /** kopia.blobcfg, decrypted. Undefined if missing. */
  readonly blobcfg: Uint8Array | undefined;
  /** Object lock for every put of a blob that it covers. */
  readonly retention: PutOptions['retention'];
}

export interface OpenFormatOptions {
  storage: BlobStorage;
  password: Secret;
  clock: Clock;
  warn: (message: string) => void;
}

/** A password change takes several writes. A reader between them retries. */
const LOAD_ATTEMPTS_MAX = 5;

/**
 * Loads and decrypts the format. If a killed password change left it unreadable, uses the recovery
 * copy. Throws `NOT_A_REPOSITORY`, `WRONG_PASSWORD`, `DAMAGED_BLOB`, `UNSUPPORTED_REPOSITORY`,
 * `REPOSITORY_LOCKED`.
 */
export async function loadFormat(options: OpenFormatOptions): Promise<Format> {
  const { storage } = options;
  for (let attempt = 1; ; attempt++) {
    let bytes: Uint8Array | undefined;
    try {
      bytes = await loadFormatBlob(storage);
      return await openFormatBlobs(bytes, options);
    } catch (error) {
      if (!isCode(error, 'NOT_A_REPOSITORY', 'DAMAGED_BLOB', 'WRONG_PASSWORD')) throw error;
      const isNew = bytes !== undefined && !(await isStored(storage, FORMAT_BLOB, bytes));
      if (isNew && attempt < LOAD_ATTEMPTS_MAX) continue;
      return await openRecoveryCopy(bytes, error, options);
    }
  }
}

/**
 * Derives and caches the key that {@link loadFormat} needs. Throws `NOT_A_REPOSITORY`,
 * `DAMAGED_BLOB` and storage errors. A wrong password is reported later by loadFormat.
 */
export async function deriveKeyAhead(
  storage: BlobStorage,
  password: Secret,
  { signal }: { signal?: AbortSignal } = {},
): Promise<void> {
  const { blob, uniqueId } = parseFormatBlob(await loadFormatBlob(storage, signal));
  await deriveFormatKey(password, blob.keyAlgo, uniqueId);
}

async function openFormatBlobs(bytes: Uint8Array, options: OpenFormatOptions): Promise<Format> {
  const { storage, password, clock, warn } = options;
  const { blob, uniqueId, sealed } = parseFormatBlob(bytes);
  const formatKey = await deriveFormatKey(password, blob.keyAlgo, uniqueId);
  const parameters = parseParameters(openInner(formatKey, uniqueId, sealed));
  assertSupported(parameters, { nowNs: clock.nowNs(), warn });
  assertKeysFit(parameters);
  const blobcfg = await loadBlobcfg(storage, formatKey, uniqueId, parameters);
  return {
    uniqueId,
    formatKey,
    keyAlgorithm: blob.keyAlgo,
    parameters,
    formatBlobBytes: bytes,
    blobcfg,
    retention: blobcfg && parseRetention(blobcfg),
  };
}

/** Whether the stored blob has exactly these bytes. */
export async function isStored(
  storage: BlobStorage,
  id: BlobId,
  bytes: Uint8Array,
): Promise<boolean> {
  try {
    return Buffer.compare(await storage.getBlob(id, { lengthMax: FORMAT_BYTES_MAX }), bytes) === 0;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB')) return false;
    throw error;
  }
}

/**
 * Opens the format from a recovery copy of a password change. Used only if kopia.repository is
 * missing or half-written. A complete kopia.repository alone decides the valid password.
 */
async function openRecoveryCopy(
  bytes: Uint8Array | undefined,
  error: CodedError,
  options: OpenFormatOptions,
): Promise<Format> {
  if (error.facts.blobId === BLOBCFG_BLOB) throw error;
  const stored = await loadRecoveryCopies(options.storage);
  const copies = stored.flatMap(({ copy }) => copy ?? []);
  const isWhole = bytes !== undefined && isCode(error, 'WRONG_PASSWORD');
  const usable = isWhole ? copies.filter((copy) => isTorn(bytes, copy)) : copies;
  if (usable.length === 0) throw error;
  for (const repository of usable.flatMap(({ before, after }) => [after, before])) {
    try {
      const format = await openFormatBlobs(repository, options);
      options.warn(
        `blob ${FORMAT_BLOB} was lost by a password change that did not finish; a copy of it is used: run repository change-password again`,
      );
      return format;
    } catch (cause) {
      if (!isCode(cause, 'WRONG_PASSWORD')) throw cause;
    }
  }
  throw wrongPassword(error);
}

async function loadFormatBlob(storage: BlobStorage, signal?: AbortSignal): Promise<Uint8Array> {
  try {
    return await storage.getBlob(FORMAT_BLOB, { lengthMax: FORMAT_BYTES_MAX, signal });
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

export function parseFormatBlob(bytes: Uint8Array): {
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

export function openInner(key: Uint8Array, uniqueId: Uint8Array, sealed: Uint8Array): Uint8Array {
  try {
    return openFormat(key, uniqueId, sealed);
  } catch (cause) {
    throw wrongPassword(cause);
  }
}

/** AES-GCM cannot tell damage from a wrong key. A wrong password is more likely. */
function wrongPassword(cause: unknown): CodedError {
  return new CodedError(
    'WRONG_PASSWORD',
    `wrong password (or blob ${FORMAT_BLOB} is damaged): its encrypted part cannot be opened`,
    { cause, facts: { blobId: FORMAT_BLOB } },
  );
}

function parseParameters(plaintext: Uint8Array): RepositoryParameters {
  try {
    const outer = parseJsonLossless(asBuffer(plaintext).toString('utf8'));
    return z.looseObject({ format: parametersSchema }).parse(outer).format;
  } catch (cause) {
    throw damaged(FORMAT_BLOB, 'its parameters are not valid', cause);
  }
}

/** Check key lengths now. Otherwise the hash would fail later, in a worker. */
function assertKeysFit({ hash, secret, masterKey }: RepositoryParameters): void {
  const secretMax = hash.startsWith('BLAKE2S') ? 32 : 64;
  if (secret.length === 0 || (hash.startsWith('BLAKE2') && secret.length > secretMax)) {
    throw damaged(FORMAT_BLOB, `its hash secret has ${secret.length} bytes`);
  }
  if (masterKey.length === 0) throw damaged(FORMAT_BLOB, 'its master key is empty');
}

/** The decrypted kopia.blobcfg. Undefined if missing. */
async function loadBlobcfg(
  storage: BlobStorage,
  formatKey: Uint8Array,
  uniqueId: Uint8Array,
  parameters: RepositoryParameters,
): Promise<Uint8Array | undefined> {
  const open = (sealed: Uint8Array | undefined): Uint8Array | undefined => {
    try {
      return sealed && openFormat(formatKey, uniqueId, sealed);
    } catch (error) {
      if (isCode(error, 'DECRYPT_FAILED')) return undefined;
      throw error;
    }
  };
  const stored = open(await getIfThere(storage, BLOBCFG_BLOB));
  if (stored) return stored;
  // A password change deletes this blob or seals it with the next key, and keeps a copy meanwhile.
  const copied = await loadCopiedBlobcfg(storage, parameters, uniqueId);
  if (copied) return copied;
  // The change may have finished between the two reads.
  const sealed = await getIfThere(storage, BLOBCFG_BLOB);
  if (!sealed) {
    await assertMayLackBlobcfg(storage, parameters);
    return undefined;
  }
  const opened = open(sealed);
  if (opened) return opened;
  throw damaged(BLOBCFG_BLOB, 'it cannot be decrypted');
}

async function getIfThere(storage: BlobStorage, id: BlobId): Promise<Uint8Array | undefined> {
  try {
    return await storage.getBlob(id, { lengthMax: FORMAT_BYTES_MAX });
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
    throw error;
  }
}

function parseRetention(blobcfg: Uint8Array): PutOptions['retention'] {
  let config: z.infer<typeof blobcfgSchema>;
  try {
    config = blobcfgSchema.parse(parseJsonLossless(asBuffer(blobcfg).toString('utf8')));
  } catch (cause) {
    throw damaged(BLOBCFG_BLOB, 'it is not the JSON of storage settings', cause);
  }
  const periodNs = BigInt(config.retentionPeriod);
  if (config.retentionMode === '' && periodNs === 0n) return undefined;
  if (config.retentionMode === '' || periodNs <= 0n) {
    throw damaged(BLOBCFG_BLOB, 'retention mode and retention period do not match');
  }
  return { mode: config.retentionMode, periodNs };
}

/**
 * Throws `DAMAGED_BLOB` if kopia.blobcfg must exist: without it, new blobs would not be locked.
 * Every creator of a format 3 repository writes it (Kopia since 0.10.3, the format since 0.12).
 * Repositories upgraded from an older format may lack it.
 */
async function assertMayLackBlobcfg(
  storage: BlobStorage,
  { version, enablePasswordChange }: RepositoryParameters,
): Promise<void> {
  if (version < 3 || !enablePasswordChange) return;
  // Every upgrade leaves a poison blob.
  for await (const { id } of storage.listBlobs(POISON_PREFIX)) if (id !== '') return;
  const advice =
    'bring it back from an earlier version of the bucket, or let "kopia repository change-password" write it again and then set the retention again';
  throw damaged(
    BLOBCFG_BLOB,
    `it is missing, but it is needed to know whether blobs are locked; ${advice}`,
  );
}

export function serializeFormatBlob(blob: FormatBlob): Uint8Array {
  return Buffer.from(`${JSON.stringify(blob, null, 2)}\n`);
}

export const toBase64 = (bytes: Uint8Array): string => asBuffer(bytes).toString('base64');
