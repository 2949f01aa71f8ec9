import { setTimeout as sleep } from 'node:timers/promises';
import {
  CodedError,
  goJson,
  isCode,
  type RandomBytes,
  randomBytes,
  type Secret,
} from '../../base/index.ts';
import { type BlobId, type BlobStorage, hasBlob, type Retention } from '../../blob/index.ts';
import { hashBytesOf, splitterSpec } from '../../codec/index.ts';
import {
  BLOBCFG_BLOB,
  FORMAT_BLOB,
  type FormatBlob,
  isStored,
  serializeFormatBlob,
  toBase64,
} from './format-blob.ts';
import { deriveFormatKey, SCRYPT, sealFormat } from './keys.ts';
import { DEFAULT_EPOCH_PARAMETERS } from './parameters.ts';

export interface NewFormat {
  hash: string;
  encryption: string;
  splitter: string;
  /** Version 1 exists only to test old repositories. The command line offers 2 and 3. */
  version: 1 | 2 | 3;
  /** Lock period of packs and indexes. Throws `UNSUPPORTED_PUT` without object lock. */
  retention?: Retention | undefined;
}

/** Time for a slower creator between its check for an empty storage and its put. */
const SETTLE_MS = 2000;

/**
 * Creates both format blobs in an empty storage, blobcfg first like Kopia. At most one of several
 * concurrent creators succeeds. With put-if-absent, the first put of blobcfg wins. Otherwise the
 * last put wins, unless a format exists by then. Throws `STORAGE_NOT_EMPTY`, `REPOSITORY_EXISTS`,
 * `REPOSITORY_UNFINISHED`.
 */
export async function createFormat(
  storage: BlobStorage,
  password: Secret,
  options: NewFormat,
  random: RandomBytes = randomBytes,
  settle: () => Promise<void> = () => sleep(SETTLE_MS),
): Promise<void> {
  if (options.retention && !storage.hasObjectLock) {
    throw new CodedError('UNSUPPORTED_PUT', `${storage.displayName} has no object lock`);
  }
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
  const blobcfg = sealFormat(formatKey, uniqueId, Buffer.from(blobcfgOf(options.retention)));
  const repository = serializeFormatBlob(outer);
  // Check again before the first put, because deriving the key takes time.
  for (const id of [FORMAT_BLOB, BLOBCFG_BLOB]) {
    if (await hasBlob(storage, id)) throw createdByOther(storage);
  }
  await putNew(storage, BLOBCFG_BLOB, blobcfg, options.retention);
  // Some services accept the condition but ignore it, so test it on the existing blob.
  const isAlone = await refusesToOverwrite(storage, blobcfg);
  if (!isAlone) await settle();
  if (!(await isStored(storage, BLOBCFG_BLOB, blobcfg))) throw createdByOther(storage);
  if (!isAlone) await giveWay(storage);
  await putNew(storage, FORMAT_BLOB, repository, options.retention);
  for (const [id, bytes] of [
    [FORMAT_BLOB, repository],
    [BLOBCFG_BLOB, blobcfg],
  ] as const) {
    if (!(await isStored(storage, id, bytes))) throw createdByOther(storage);
  }
}

/**
 * Stops if another creator has already put a format. This creator has replaced its blobcfg, and
 * must not replace its format with all the keys. Deletes blobcfg: a repository can be opened
 * without one, or get a new one by a password change. Throws `REPOSITORY_EXISTS`.
 */
async function giveWay(storage: BlobStorage): Promise<void> {
  if (!(await hasBlob(storage, FORMAT_BLOB))) return;
  await storage.deleteBlob(BLOBCFG_BLOB);
  throw createdByOther(storage);
}

/** Puts a blob that must not exist yet, as far as the storage can check. */
async function putNew(
  storage: BlobStorage,
  id: BlobId,
  bytes: Uint8Array,
  retention: Retention | undefined,
): Promise<void> {
  const locked = retention ? { retention } : {};
  try {
    await storage.putBlob(id, [bytes], { ...locked, doNotRecreate: true });
  } catch (error) {
    if (isCode(error, 'BLOB_EXISTS')) throw createdByOther(storage);
    if (!isCode(error, 'UNSUPPORTED_PUT')) throw error;
    if (await hasBlob(storage, id)) throw createdByOther(storage);
    await storage.putBlob(id, [bytes], locked);
  }
}

async function refusesToOverwrite(storage: BlobStorage, blobcfg: Uint8Array): Promise<boolean> {
  try {
    await storage.putBlob(BLOBCFG_BLOB, [blobcfg], { doNotRecreate: true });
    return false;
  } catch (error) {
    if (isCode(error, 'BLOB_EXISTS')) return true;
    if (isCode(error, 'UNSUPPORTED_PUT')) return false;
    throw error;
  }
}

const createdByOther = ({ displayName }: BlobStorage): CodedError =>
  new CodedError(
    'REPOSITORY_EXISTS',
    `somebody else is creating a repository in ${displayName} at the same time: this one was not created`,
  );

async function assertEmpty(storage: BlobStorage): Promise<void> {
  const found = new Set<BlobId>();
  for await (const { id } of storage.listBlobs('kopia.')) found.add(id);
  if (found.has(FORMAT_BLOB)) {
    const text = `there is already a repository in ${storage.displayName}`;
    throw new CodedError('REPOSITORY_EXISTS', text);
  }
  if (found.has(BLOBCFG_BLOB)) {
    const text = `${storage.displayName} holds ${BLOBCFG_BLOB} without ${FORMAT_BLOB}: a repository is being created there, or its creation was interrupted`;
    const advice = `if that was a while ago and the location is otherwise empty, delete ${BLOBCFG_BLOB} and try again`;
    throw new CodedError('REPOSITORY_UNFINISHED', `${text}; ${advice}`);
  }
  for await (const { id } of storage.listBlobs('')) {
    const text = `${storage.displayName} is not empty (it holds ${id}): choose another location`;
    throw new CodedError('STORAGE_NOT_EMPTY', text);
  }
}

/** Kopia: repo/format/blobcfg_blob.go. */
const blobcfgOf = (retention: Retention | undefined): string =>
  goJson(retention ? { retentionMode: retention.mode, retentionPeriod: retention.periodNs } : {});

function zeroed(parameters: object): Record<string, number | boolean> {
  return Object.fromEntries(
    Object.entries(parameters).map(([key, value]) => [key, typeof value === 'boolean' ? false : 0]),
  );
}
