import { setTimeout as sleep } from 'node:timers/promises';
import { CodedError, isCode, messageOf, retryOf, type Secret } from '../../base/index.ts';
import { type BlobStorage, hasBlob, type PutOptions } from '../../blob/index.ts';
import { raced, takeTurn, type Turn } from './change-turn.ts';
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

/**
 * How long a run with the same passwords may still be at work that seems to be killed. Our choice.
 */
const SETTLE_MS = 10_000;

/**
 * The format for {@link changePassword}. The old password opens it, or the new one, where an
 * earlier run was killed when the new one was in force already. Throws what `loadFormat` throws.
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
 * Throws `LOCATION_WRITE_ONCE` where a password cannot be changed: a repository has one password,
 * which is that of its `kopia.repository`, and every program looks for it under this name. There is
 * no second blob that could stand for it, and with a lock the old one, which the old password
 * opens, would stay beside it.
 */
export function assertPasswordMayChange(storage: BlobStorage): void {
  if (storage.isWriteOnce !== true) return;
  const text = `${storage.displayName} is written once, and another password needs kopia.repository and kopia.blobcfg to be put again: nothing was changed. Take the annotation longshore.io/write-once (or writeOnce=true) off while no backup and no restore is under way, change the password, and set it again`;
  throw new CodedError('LOCATION_WRITE_ONCE', text);
}

export interface ChangePasswordOptions {
  /** Waits before it goes on from a run that seems to be killed; by default for 10 s. */
  readonly settle?: () => Promise<void>;
  /** Of the new password, where it was derived before ({@link deriveNewKey}). */
  readonly newKey?: Uint8Array;
}

/**
 * The key that {@link changePassword} seals with. Takes 64 MiB and a fifth of a second. Changes
 * nothing.
 */
export function deriveNewKey(
  { formatBlobBytes }: Format,
  newPassword: Secret,
): Promise<Uint8Array> {
  const { blob, uniqueId } = parseFormatBlob(formatBlobBytes);
  return deriveFormatKey(newPassword, blob.keyAlgo, uniqueId);
}

/**
 * Re-encrypts both format blobs under a new password. The put of kopia.repository decides which
 * password is in force, in one moment; a copy of all that is needed lies beside it until the end.
 * So a kill at any point leaves a repository that one of the two passwords opens, and a second run
 * finishes. The real Kopia opens it too at every point, except under object lock between the two
 * puts: without kopia.blobcfg it would write blobs that are not locked. Of several at once one
 * succeeds at most, see {@link takeTurn}. Throws `PASSWORD_CHANGE_UNSUPPORTED` and
 * `LOCATION_WRITE_ONCE`, when nothing was changed; `PASSWORD_CHANGE_RACED`;
 * `PASSWORD_CHANGE_UNFINISHED` when it stopped on the way.
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
      // Whoever it was may know nothing of this run's last requests: with the copy each state can
      // be read.
      await putRecoveryCopy(storage, turn.id, { ...copy, isOver: true });
      throw cause;
    }
    const text = `the password change did not finish: ${messageOf(cause)}; run the same command again to finish it`;
    throw new CodedError('PASSWORD_CHANGE_UNFINISHED', text, { cause, retry: retryOf(cause) });
  }
}

/**
 * Makes both format blobs whole as they were loaded, so that the copies of earlier runs are of no
 * more use.
 */
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

/** Object lock, as the format blobs carry it. */
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
  // Kopia refuses a blobcfg under another password, and takes a missing one as "no object lock".
  if (blobcfg && !retention) await storage.deleteBlob(BLOBCFG_BLOB);
  // Somebody who took this run for killed has deleted its copy.
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
