import { CodedError, isCode, type Nanoseconds } from '../../base/index.ts';
import type { BlobId, BlobStorage } from '../../blob/index.ts';
import {
  BLOBCFG_BLOB,
  type Format,
  FORMAT_BLOB,
  isStored,
  openInner,
  parseFormatBlob,
} from './format-blob.ts';
import { openFormat } from './keys.ts';
import {
  FORMAT_BYTES_MAX,
  isTorn,
  loadRecoveryCopies,
  newRecoveryCopyId,
  putRecoveryCopy,
  type RecoveryCopy,
  type StoredRecoveryCopy,
} from './recovery-copy.ts';

/**
 * Age of a recovery copy, by the storage's clock, after which a run with other passwords may
 * replace its run. Our choice: a change makes a dozen requests, and each is retried for at most 5
 * minutes.
 */
const ABANDONED_NS: Nanoseconds = 3_600_000_000_000n;

export interface Turn {
  /** Name of this run's recovery copy, which exists until the turn ends. */
  readonly id: BlobId;
  /** Recovery copies of killed runs. */
  readonly leftovers: readonly BlobId[];
  /** Whether kopia.repository is missing or half-written. */
  readonly isLost: boolean;
}

export interface TurnOptions {
  /** The format as loaded. */
  readonly format: Format;
  /** The key of the new password. */
  readonly newKey: Uint8Array;
  readonly copy: RecoveryCopy;
  /** Waits as long as a run with the same passwords may take, in case it was not killed. */
  readonly settle: () => Promise<void>;
}

/**
 * Gives this run the sole right to change the format blobs. Throws `PASSWORD_CHANGE_RACED` if
 * another run is active; then nothing was changed.
 * Each run puts its recovery copy and then lists all copies. So at least one of two concurrent runs
 * sees the other and removes its own copy. A run that continues saw no other copy, and later runs
 * see its copy.
 * This needs no conditional puts, only that a listing shows every blob put before it began.
 */
export async function takeTurn(storage: BlobStorage, options: TurnOptions): Promise<Turn> {
  const { format, settle, copy } = options;
  const known = new Set<BlobId>();
  let mustSettle = false;
  for (const other of await loadRecoveryCopies(storage)) {
    known.add(other.id);
    mustSettle ||= isSamePassword(other, options) && !(await isOver(storage, other, format));
  }
  if (mustSettle) await settle();
  const id = newRecoveryCopyId();
  try {
    await putRecoveryCopy(storage, id, copy);
    const copies = await loadRecoveryCopies(storage);
    const own = copies.find((stored) => stored.id === id);
    if (!own) throw cameTogether();
    const others = copies.filter((stored) => stored !== own);
    for (const other of others) {
      if (await isOver(storage, other, format)) continue;
      if (!known.has(other.id)) throw cameTogether();
      const isAbandoned = own.timestampNs - other.timestampNs >= ABANDONED_NS;
      if (!isAbandoned && !isSamePassword(other, options)) throw underWay();
    }
    return {
      id,
      leftovers: others.map((stored) => stored.id),
      isLost: await isLost(storage, format, others),
    };
  } catch (error) {
    // Try to delete the copy, because no other run will soon. Report the first failure.
    await storage.deleteBlob(id).catch(() => undefined);
    throw error;
  }
}

/** Whether the copy is of this command or its opposite. This run then continues it. */
function isSamePassword({ copy }: StoredRecoveryCopy, { newKey }: TurnOptions): boolean {
  return copy !== undefined && (opens(newKey, copy.after) || opens(newKey, copy.before));
}

function opens(key: Uint8Array, repository: Uint8Array): boolean {
  try {
    const { uniqueId, sealed } = parseFormatBlob(repository);
    openInner(key, uniqueId, sealed);
    return true;
  } catch (error) {
    if (isCode(error, 'WRONG_PASSWORD', 'DAMAGED_BLOB', 'UNSUPPORTED_REPOSITORY')) return false;
    throw error;
  }
}

/** Whether the copy's run will write no more format blobs, even if it still runs. */
async function isOver(
  storage: BlobStorage,
  { copy }: StoredRecoveryCopy,
  format: Format,
): Promise<boolean> {
  // The put of the copy has not finished. That run will list this run's copy later and stop.
  if (!copy || copy.isOver === true) return true;
  const isInForce = (bytes: Uint8Array): boolean =>
    Buffer.compare(bytes, format.formatBlobBytes) === 0;
  // The other run continues only from the state it began with. That state never returns, because
  // seals are random.
  if (isInForce(copy.before)) return false;
  if (!isInForce(copy.after) || !format.blobcfg) return true;
  // kopia.blobcfg is written last.
  try {
    const sealed = await storage.getBlob(BLOBCFG_BLOB, { lengthMax: FORMAT_BYTES_MAX });
    openFormat(format.formatKey, format.uniqueId, sealed);
    return true;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB', 'DECRYPT_FAILED')) return false;
    throw error;
  }
}

/** Throws `PASSWORD_CHANGE_RACED` if kopia.repository is complete but not the loaded one. */
async function isLost(
  storage: BlobStorage,
  { formatBlobBytes }: Format,
  others: readonly StoredRecoveryCopy[],
): Promise<boolean> {
  if (await isStored(storage, FORMAT_BLOB, formatBlobBytes)) return false;
  const copies = others.flatMap(({ copy }) => copy ?? []);
  if (copies.length === 0) throw cameTogether();
  try {
    const bytes = await storage.getBlob(FORMAT_BLOB, { lengthMax: FORMAT_BYTES_MAX });
    parseFormatBlob(bytes);
    if (!copies.some((copy) => isTorn(bytes, copy))) throw cameTogether();
  } catch (error) {
    if (!isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB')) throw error;
  }
  return true;
}

export const raced = (text: string): CodedError => new CodedError('PASSWORD_CHANGE_RACED', text);

const cameTogether = (): CodedError =>
  raced(
    'another password change, or a change of the format, ran at the same time; this one changed nothing: run it again with the password that opens the repository now',
  );

const underWay = (): CodedError =>
  raced(
    'another password change is under way, or was killed less than an hour ago; this one changed nothing. If that one was killed, run it again with the same passwords to finish it; to use other passwords, wait for an hour',
  );
