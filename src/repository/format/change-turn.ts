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
 * A run with other passwords may go on from a copy that is older by the storage's clock. Our
 * choice: a change makes a dozen requests, none of which is tried again for longer than 5 minutes.
 */
const ABANDONED_NS: Nanoseconds = 3_600_000_000_000n;

export interface Turn {
  /** Name of the run's own recovery copy. It is there until the turn ends. */
  readonly id: BlobId;
  /** Copies of runs that were killed. */
  readonly leftovers: readonly BlobId[];
  /** Whether kopia.repository is missing, or what a put left that stopped half way. */
  readonly isLost: boolean;
}

export interface TurnOptions {
  /** As it was loaded. */
  readonly format: Format;
  /** The key of the new password. */
  readonly newKey: Uint8Array;
  readonly copy: RecoveryCopy;
  /** Waits as long as a run may take that uses the same passwords and was not killed after all. */
  readonly settle: () => Promise<void>;
}

/**
 * Makes this run the only one that changes the format blobs. Each run puts its recovery copy first
 * and lists those of others then, so of two at once one at least sees the other, and takes its own
 * away again. This needs no conditional puts, only what every storage promises: a list shows what
 * was put before it began. Who goes on saw nobody, and whoever comes later sees it. Throws
 * `PASSWORD_CHANGE_RACED` when nothing was changed because of somebody else.
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
    // Nobody else deletes it soon. What failed is what counts.
    await storage.deleteBlob(id).catch(() => undefined);
    throw error;
  }
}

/**
 * Whether the copy is of the command that runs now, or of the one that it takes back: it goes on
 * from there.
 */
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

/**
 * Whether the run that wrote the copy will write no format blob any more, even when it still runs.
 */
async function isOver(
  storage: BlobStorage,
  { copy }: StoredRecoveryCopy,
  format: Format,
): Promise<boolean> {
  // Its put has not ended, so its list is yet to come and will show this run.
  if (!copy || copy.isOver === true) return true;
  const isInForce = (bytes: Uint8Array): boolean =>
    Buffer.compare(bytes, format.formatBlobBytes) === 0;
  // It goes on only while the state it began with is in force, which never comes again: seals are
  // random.
  if (isInForce(copy.before)) return false;
  if (!isInForce(copy.after) || !format.blobcfg) return true;
  // kopia.blobcfg comes last.
  try {
    const sealed = await storage.getBlob(BLOBCFG_BLOB, { lengthMax: FORMAT_BYTES_MAX });
    openFormat(format.formatKey, format.uniqueId, sealed);
    return true;
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB', 'DECRYPT_FAILED')) return false;
    throw error;
  }
}

/** Throws `PASSWORD_CHANGE_RACED` when kopia.repository is whole and not what was loaded. */
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
