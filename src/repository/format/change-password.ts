import { CodedError, isCode, messageOf, retryOf, type Secret } from '../../base/index.ts';
import type { BlobStorage, PutOptions } from '../../blob/index.ts';
import {
  BLOBCFG_BLOB,
  type Format,
  FORMAT_BLOB,
  isStored,
  loadFormat,
  openInner,
  type OpenFormatOptions,
  parseFormatBlob,
  serializeFormatBlob,
  toBase64,
} from './format-blob.ts';
import { deriveFormatKey, sealFormat } from './keys.ts';
import {
  FORMAT_BYTES_MAX,
  type FormatBlobs,
  isTorn,
  loadRecoveryCopy,
  putRecoveryCopy,
  RECOVERY_COPY_BLOB,
  type RecoveryCopy,
} from './recovery-copy.ts';

/**
 * The format for {@link changePassword}. The old password opens it, or the new one, where an earlier run was killed
 * when the new one was in force already. Throws what `loadFormat` throws.
 */
export async function loadFormatToChange(
  options: Omit<OpenFormatOptions, 'password'>,
  [password, newPassword]: readonly [Secret, Secret],
): Promise<Format> {
  try {
    return await loadFormat({ ...options, password });
  } catch (error) {
    if (!isCode(error, 'WRONG_PASSWORD')) throw error;
    try {
      return await loadFormat({ ...options, password: newPassword });
    } catch (other) {
      throw isCode(other, 'WRONG_PASSWORD') ? error : other;
    }
  }
}

/**
 * Re-encrypts both format blobs under a new password. The put of kopia.repository decides which password is in force,
 * in one moment; a copy of all that is needed lies beside it until the end. So a kill at any point leaves a repository
 * that one of the two passwords opens, and a second run finishes. The real Kopia opens it too at every point, except
 * under object lock between the two puts: without kopia.blobcfg it would write blobs that are not locked.
 * Throws `PASSWORD_CHANGE_UNSUPPORTED`; `PASSWORD_CHANGE_UNFINISHED` when it stopped on the way.
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
  const { blob, uniqueId, sealed } = parseFormatBlob(format.formatBlobBytes);
  const inner = openInner(format.formatKey, uniqueId, sealed);
  const newKey = await deriveFormatKey(newPassword, blob.keyAlgo, uniqueId);
  const seal = (key: Uint8Array): Uint8Array | undefined =>
    format.blobcfg && sealFormat(key, uniqueId, format.blobcfg);
  const encryptedBlockFormat = toBase64(sealFormat(newKey, uniqueId, inner));
  const after: FormatBlobs = {
    repository: serializeFormatBlob({ ...blob, encryptedBlockFormat }),
    blobcfg: seal(newKey),
  };
  const wasKilled = await finishKilledChange(storage, format, seal(format.formatKey));
  if (wasKilled && Buffer.compare(newKey, format.formatKey) === 0) return;
  const before = { repository: format.formatBlobBytes, blobcfg: seal(format.formatKey) };
  await putRecoveryCopy(storage, { before, after });
  try {
    await putFormatBlobs(storage, format, after);
    await storage.deleteBlob(RECOVERY_COPY_BLOB);
  } catch (cause) {
    const text = `the password change did not finish: ${messageOf(cause)}; run the same command again, it goes on from there`;
    throw new CodedError('PASSWORD_CHANGE_UNFINISHED', text, { cause, retry: retryOf(cause) });
  }
}

/**
 * Makes both format blobs whole by what an earlier run left, so that its copy is of no more use, and says whether
 * there was one. What was loaded must still be there. Throws `PASSWORD_CHANGE_RACED`.
 */
async function finishKilledChange(
  storage: BlobStorage,
  format: Format,
  blobcfg: Uint8Array | undefined,
): Promise<boolean> {
  const copy = await loadRecoveryCopy(storage);
  const options = putOptionsOf(storage, format);
  if (!(await isStored(storage, FORMAT_BLOB, format.formatBlobBytes))) {
    if (!copy || !(await isLost(storage, copy))) throw raced();
    await storage.putBlob(FORMAT_BLOB, [format.formatBlobBytes], options);
  }
  if (!copy) return false;
  if (blobcfg) await storage.putBlob(BLOBCFG_BLOB, [blobcfg], options);
  await storage.deleteBlob(RECOVERY_COPY_BLOB);
  return true;
}

/** Whether kopia.repository is missing or what a put left that stopped half way. */
async function isLost(storage: BlobStorage, copy: RecoveryCopy): Promise<boolean> {
  try {
    const bytes = await storage.getBlob(FORMAT_BLOB, { lengthMax: FORMAT_BYTES_MAX });
    parseFormatBlob(bytes);
    return isTorn(bytes, copy);
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB')) return true;
    throw error;
  }
}

/** Object lock, as the format blobs carry it. */
const putOptionsOf = (storage: BlobStorage, { retention }: Format): PutOptions =>
  retention && storage.hasObjectLock ? { retention } : {};

async function putFormatBlobs(
  storage: BlobStorage,
  format: Format,
  after: FormatBlobs,
): Promise<void> {
  const options = putOptionsOf(storage, format);
  // Kopia refuses a blobcfg under another password, and takes a missing one as "no object lock".
  if (format.blobcfg && !format.retention) await storage.deleteBlob(BLOBCFG_BLOB);
  await storage.putBlob(FORMAT_BLOB, [after.repository], options);
  if (!(await isStored(storage, FORMAT_BLOB, after.repository))) throw raced();
  if (after.blobcfg) {
    await storage.putBlob(BLOBCFG_BLOB, [after.blobcfg], options);
    if (!(await isStored(storage, BLOBCFG_BLOB, after.blobcfg))) throw raced();
  }
  if (!(await isStored(storage, FORMAT_BLOB, after.repository))) throw raced();
}

const raced = (): CodedError =>
  new CodedError(
    'PASSWORD_CHANGE_RACED',
    'another password change, or a change of the format, ran at the same time',
  );
