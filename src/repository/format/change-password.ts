import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf, retryOf, type Secret } from '../../base/index.ts';
import { type BlobStorage, hasBlob, type PutOptions } from '../../blob/index.ts';
import { raced, takeTurn, type Turn } from './change-lock.ts';
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
import { putRecoveryCopy, sealBlobcfg } from './recovery-copy.ts';

/** Time for a run with the same passwords to end, if it only seems killed. Our choice. */
const SETTLE_MS = 10_000;

/**
 * The format for {@link changePassword}. Tries the old password, then the new one: a killed run may
 * have put the new one in force. Throws errors of `loadFormat`.
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
 * Throws `LOCATION_WRITE_ONCE` if the location is write-once. A repository has one password, that
 * of its `kopia.repository`, and every program reads this name. With a lock, the old blob and its
 * old password would remain readable.
 */
export function assertPasswordMayChange(storage: BlobStorage): void {
  if (storage.isWriteOnce !== true) return;
  const text = `${storage.displayName} is written once, and another password needs kopia.repository and kopia.blobcfg to be put again: nothing was changed. Take the annotation longshore.io/write-once (or writeOnce=true) off while no backup and no restore is under way, change the password, and set it again`;
  throw new CodedError('LOCATION_WRITE_ONCE', text);
}

export interface ChangePasswordOptions {
  /** Waits before it continues a run that seems killed. The default is 10 s. */
  readonly settle?: () => Promise<void>;
  /** The key of the new password, if already derived ({@link deriveNewKey}). */
  readonly newKey?: Uint8Array;
}

/** The key that {@link changePassword} seals with. Takes 64 MiB and 0.2 s. Writes nothing. */
export function deriveNewKey(
  { formatBlobBytes }: Format,
  newPassword: Secret,
): Promise<Uint8Array> {
  const { blob, uniqueId } = parseFormatBlob(formatBlobBytes);
  return deriveFormatKey(newPassword, blob.keyAlgo, uniqueId);
}

/**
 * Re-encrypts both format blobs under a new password. The put of kopia.repository switches the
 * password in one step. A recovery copy of both blobs exists until the end. After a kill at any
 * point, one of the two passwords opens the repository, and a second run finishes the change.
 * Kopia can open it at every point too. Exception: with object lock, between the two puts, Kopia
 * would write unlocked blobs because kopia.blobcfg is missing.
 * At most one of several concurrent runs succeeds, see {@link takeTurn}.
 * Throws `PASSWORD_CHANGE_UNSUPPORTED` or `LOCATION_WRITE_ONCE` before any change,
 * `PASSWORD_CHANGE_RACED`, and `PASSWORD_CHANGE_UNFINISHED` if it stopped midway.
 */
export async function changePassword(
  storage: BlobStorage,
  format: Format,
  newPassword: Secret,
  options: ChangePasswordOptions = {},
): Promise<void> {
  const { settle = () => sleep(SETTLE_MS) } = options;
  const { parameters, blobcfg, formatBlobBytes } = format;
  if (!parameters.enablePasswordChange) {
    const text = 'the password of this repository cannot be changed: its format is too old';
    throw new CodedError('PASSWORD_CHANGE_UNSUPPORTED', text);
  }
  const { blob, uniqueId, sealed } = parseFormatBlob(formatBlobBytes);
  const inner = openInner(format.formatKey, uniqueId, sealed);
  const newKey = options.newKey ?? (await deriveNewKey(format, newPassword));
  const isInForce = Buffer.compare(newKey, format.formatKey) === 0;
  if (!isInForce) assertPasswordMayChange(storage);
  const encryptedBlockFormat = toBase64(sealFormat(newKey, uniqueId, inner));
  const copy = {
    before: formatBlobBytes,
    after: serializeFormatBlob({ ...blob, encryptedBlockFormat }),
    blobcfg: blobcfg && sealBlobcfg(parameters, uniqueId, blobcfg),
  };
  const turn = await takeTurn(storage, { format, newKey, copy, settle });
  try {
    await finishKilledChanges(storage, format, turn);
    if (!isInForce) await putFormatBlobs(storage, { format, turn, newKey, repository: copy.after });
    await storage.deleteBlob(turn.id);
  } catch (cause) {
    if (isCode(cause, 'PASSWORD_CHANGE_RACED')) {
      // The other run may not expect this run's last requests. With this copy, every resulting
      // state can be read.
      await putRecoveryCopy(storage, turn.id, { ...copy, isOver: true });
      throw cause;
    }
    const text = `the password change did not finish: ${messageOf(cause)}; run the same command again to finish it`;
    throw new CodedError('PASSWORD_CHANGE_UNFINISHED', text, { cause, retry: retryOf(cause) });
  }
}

/** Puts both format blobs again as loaded, and deletes the recovery copies of killed runs. */
async function finishKilledChanges(
  storage: BlobStorage,
  format: Format,
  { leftovers, isLost }: Turn,
): Promise<void> {
  const { formatKey, uniqueId, blobcfg, formatBlobBytes } = format;
  const options = putOptionsOf(storage, format);
  if (isLost) await storage.putBlob(FORMAT_BLOB, [formatBlobBytes], options);
  if (leftovers.length === 0) return;
  if (blobcfg) {
    await storage.putBlob(BLOBCFG_BLOB, [sealFormat(formatKey, uniqueId, blobcfg)], options);
  }
  for (const id of leftovers) await storage.deleteBlob(id);
}

/** Object lock of the format blobs. */
const putOptionsOf = (storage: BlobStorage, { retention }: Format): PutOptions =>
  retention && storage.hasObjectLock ? { retention } : {};

interface FormatPut {
  readonly format: Format;
  readonly turn: Turn;
  readonly newKey: Uint8Array;
  readonly repository: Uint8Array;
}

async function putFormatBlobs(
  storage: BlobStorage,
  { format, turn, newKey, repository }: FormatPut,
): Promise<void> {
  const options = putOptionsOf(storage, format);
  const { uniqueId, retention } = format;
  const blobcfg = format.blobcfg && sealFormat(newKey, uniqueId, format.blobcfg);
  // Kopia rejects a blobcfg under another password, and takes a missing blobcfg as "no object
  // lock".
  if (blobcfg && !retention) await storage.deleteBlob(BLOBCFG_BLOB);
  // A run that took this run for killed has deleted its copy.
  if (!(await hasBlob(storage, turn.id))) throw changedByOther();
  await storage.putBlob(FORMAT_BLOB, [repository], options);
  if (!(await isStored(storage, FORMAT_BLOB, repository))) throw changedByOther();
  if (blobcfg) {
    await storage.putBlob(BLOBCFG_BLOB, [blobcfg], options);
    if (!(await isStored(storage, BLOBCFG_BLOB, blobcfg))) throw changedByOther();
  }
  if (!(await isStored(storage, FORMAT_BLOB, repository))) throw changedByOther();
}

const changedByOther = (): CodedError =>
  raced(
    'another password change, or a change of the format, ran at the same time, and the new password may not be in force: run the command again with the password that opens the repository now',
  );
