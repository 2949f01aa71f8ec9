import { z } from 'zod';
import {
  asBuffer,
  isCode,
  type Nanoseconds,
  type RandomBytes,
  randomHex,
} from '../../base/index.ts';
import { type BlobId, blobId, type BlobStorage, listAll } from '../../blob/index.ts';
import { derivePurposeKey, openFormat, sealFormat } from './keys.ts';
import type { RepositoryParameters } from './parameters.ts';

/**
 * Name prefix of recovery copies. Each running or killed password change has its own copy, so a
 * late request cannot hit another run's copy. Kopia neither reads nor lists these names.
 */
export const RECOVERY_COPY_PREFIX = 'kopia.longshore-password-change';

/** Maximum size of a format blob. Kopia's is below 2 KiB, or little more during an upgrade. */
export const FORMAT_BYTES_MAX = 1 << 20;

/** Reads only the newest copies, in case someone added many. Our choice. */
const COPIES_MAX = 64;

/** Copies of the blobs that a killed password change could leave unreadable. */
export interface RecoveryCopy {
  /** kopia.repository as it was stored. */
  readonly before: Uint8Array;
  /** kopia.repository under the new password. */
  readonly after: Uint8Array;
  /** kopia.blobcfg, sealed with a key that is independent of the password ({@link sealBlobcfg}). */
  readonly blobcfg: Uint8Array | undefined;
  /**
   * The run lost a race and writes no more format blobs. The copy stays, because its requests may
   * have damaged other runs' blobs.
   */
  readonly isOver?: boolean | undefined;
}

export interface StoredRecoveryCopy {
  readonly id: BlobId;
  /** Earliest time of the run's changes, by the storage's clock. */
  readonly timestampNs: Nanoseconds;
  /** Undefined if damaged: the run was killed before it changed anything. */
  readonly copy: RecoveryCopy | undefined;
}

const bytesSchema = z.base64().transform((text) => new Uint8Array(Buffer.from(text, 'base64')));
const copySchema = z
  .object({
    before: bytesSchema,
    after: bytesSchema,
    blobcfg: bytesSchema.optional(),
    isOver: z.boolean().optional(),
  })
  .transform(({ blobcfg, ...rest }): RecoveryCopy => ({ ...rest, blobcfg }));

export const newRecoveryCopyId = (random?: RandomBytes): BlobId =>
  blobId(`${RECOVERY_COPY_PREFIX}-${randomHex(8, random)}`);

/** All recovery copies, newest first. */
export async function loadRecoveryCopies(storage: BlobStorage): Promise<StoredRecoveryCopy[]> {
  const listed = await listAll(storage, RECOVERY_COPY_PREFIX);
  listed.sort((a, b) => Number(b.timestampNs - a.timestampNs));
  const copies: StoredRecoveryCopy[] = [];
  for (const { id, timestampNs } of listed.slice(0, COPIES_MAX)) {
    try {
      const bytes = await storage.getBlob(id, { lengthMax: 8 * FORMAT_BYTES_MAX });
      copies.push({ id, timestampNs, copy: parseRecoveryCopy(bytes) });
    } catch (error) {
      if (isCode(error, 'DAMAGED_BLOB')) copies.push({ id, timestampNs, copy: undefined });
      // The copy was deleted meanwhile.
      else if (!isCode(error, 'BLOB_NOT_FOUND')) throw error;
    }
  }
  return copies;
}

function parseRecoveryCopy(bytes: Uint8Array): RecoveryCopy | undefined {
  try {
    return copySchema.parse(JSON.parse(asBuffer(bytes).toString('utf8')));
  } catch {
    return undefined;
  }
}

export async function putRecoveryCopy(
  storage: BlobStorage,
  id: BlobId,
  { before, after, blobcfg, isOver }: RecoveryCopy,
): Promise<void> {
  const text = (bytes: Uint8Array): string => asBuffer(bytes).toString('base64');
  const json = JSON.stringify({
    before: text(before),
    after: text(after),
    ...(blobcfg && { blobcfg: text(blobcfg) }),
    isOver,
  });
  await storage.putBlob(id, [Buffer.from(json)]);
}

/** Derived from the master key, which password changes keep, so it works after a race or kill. */
const blobcfgKey = ({ masterKey }: RepositoryParameters, uniqueId: Uint8Array): Uint8Array =>
  derivePurposeKey(masterKey, uniqueId, 'longshore recovery copy');

/** Seals the decrypted kopia.blobcfg for a recovery copy. */
export const sealBlobcfg = (
  parameters: RepositoryParameters,
  uniqueId: Uint8Array,
  blobcfg: Uint8Array,
): Uint8Array => sealFormat(blobcfgKey(parameters, uniqueId), uniqueId, blobcfg);

/** The decrypted kopia.blobcfg of the newest recovery copy that has one. */
export async function loadCopiedBlobcfg(
  storage: BlobStorage,
  parameters: RepositoryParameters,
  uniqueId: Uint8Array,
): Promise<Uint8Array | undefined> {
  for (const { copy } of await loadRecoveryCopies(storage)) {
    try {
      if (copy?.blobcfg) {
        return openFormat(blobcfgKey(parameters, uniqueId), uniqueId, copy.blobcfg);
      }
    } catch (error) {
      if (!isCode(error, 'DECRYPT_FAILED')) throw error;
    }
  }
  return undefined;
}

/**
 * Whether a put of the new kopia.repository stopped midway, on a storage that overwrites in place.
 * The blob then has new bytes first and old bytes after them.
 */
export function isTorn(found: Uint8Array, { before, after }: RecoveryCopy): boolean {
  const isSame = (other: Uint8Array): boolean => Buffer.compare(found, other) === 0;
  if (isSame(before) || isSame(after) || found.length !== before.length) return false;
  let at = 0;
  while (at < found.length && found[at] === after[at]) at++;
  return Buffer.compare(found.subarray(at), before.subarray(at)) === 0;
}
