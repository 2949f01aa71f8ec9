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
 * How the blobs are named that hold a recovery copy, one for each password change that runs or was
 * killed. Nobody but their run writes them, so a request that comes late hits no other run's. Kopia
 * reads no blob of this name, and it starts with none of the prefixes that Kopia lists.
 */
export const RECOVERY_COPY_PREFIX = 'kopia.longshore-password-change';

/** Kopia's is below 2 KiB; an upgrade lock or required features add little. */
export const FORMAT_BYTES_MAX = 1 << 20;

/** More are there only when somebody put them there: the newest count. Our choice. */
const COPIES_MAX = 64;

/** What a password change that is killed on its way could leave unreadable. */
export interface RecoveryCopy {
  /** kopia.repository as it was stored. */
  readonly before: Uint8Array;
  /** kopia.repository under the new password. */
  readonly after: Uint8Array;
  /**
   * kopia.blobcfg, for everybody who can open kopia.repository, under whatever password; see
   * {@link sealBlobcfg}.
   */
  readonly blobcfg: Uint8Array | undefined;
  /**
   * The run lost a race and writes no format blob any more; the copy stays for what its requests
   * did to others.
   */
  readonly isOver?: boolean | undefined;
}

export interface StoredRecoveryCopy {
  readonly id: BlobId;
  /** When the run began to change something at the earliest, by the storage's clock. */
  readonly timestampNs: Nanoseconds;
  /** Undefined when it is damaged: the run did not come so far as to change anything. */
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

/** All that are there, the newest first. */
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
      // It was deleted in the meantime.
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

/**
 * No password change touches the master key, so this opens in each state that a race or a kill may
 * leave.
 */
const blobcfgKey = ({ masterKey }: RepositoryParameters, uniqueId: Uint8Array): Uint8Array =>
  derivePurposeKey(masterKey, uniqueId, 'longshore recovery copy');

/** Seals the plain kopia.blobcfg for a recovery copy. */
export const sealBlobcfg = (
  parameters: RepositoryParameters,
  uniqueId: Uint8Array,
  blobcfg: Uint8Array,
): Uint8Array => sealFormat(blobcfgKey(parameters, uniqueId), uniqueId, blobcfg);

/**
 * The plain kopia.blobcfg of the newest recovery copy that has it; undefined when there is none.
 */
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
 * Whether a put of the new kopia.repository stopped half way, on a store that overwrites in place:
 * first a part of the new bytes, then what is left of the old ones.
 */
export function isTorn(found: Uint8Array, { before, after }: RecoveryCopy): boolean {
  const isSame = (other: Uint8Array): boolean => Buffer.compare(found, other) === 0;
  if (isSame(before) || isSame(after) || found.length !== before.length) return false;
  let at = 0;
  while (at < found.length && found[at] === after[at]) at++;
  return Buffer.compare(found.subarray(at), before.subarray(at)) === 0;
}
