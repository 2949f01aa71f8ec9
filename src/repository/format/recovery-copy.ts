import { z } from 'zod';
import { asBuffer, isCode } from '../../base/index.ts';
import { blobId, type BlobStorage } from '../../blob/index.ts';

/**
 * Holds both format blobs as they are before and after a password change, for as long as the change runs. Kopia
 * reads no blob of this name, and it starts with none of the prefixes that Kopia lists.
 */
export const RECOVERY_COPY_BLOB = blobId('kopia.longshore-password-change');

/** Kopia's is below 2 KiB; an upgrade lock or required features add little. */
export const FORMAT_BYTES_MAX = 1 << 20;

/** Both format blobs, as stored. Old repositories have no blobcfg. */
export interface FormatBlobs {
  readonly repository: Uint8Array;
  readonly blobcfg: Uint8Array | undefined;
}

export interface RecoveryCopy {
  readonly before: FormatBlobs;
  readonly after: FormatBlobs;
}

const bytesSchema = z.base64().transform((text) => new Uint8Array(Buffer.from(text, 'base64')));
const blobsSchema = z
  .object({ repository: bytesSchema, blobcfg: bytesSchema.optional() })
  .transform(({ repository, blobcfg }): FormatBlobs => ({ repository, blobcfg }));
const copySchema = z.object({ before: blobsSchema, after: blobsSchema });

/** Undefined when there is none. A damaged one counts as none: it is written before anything changes. */
export async function loadRecoveryCopy(storage: BlobStorage): Promise<RecoveryCopy | undefined> {
  let bytes: Uint8Array;
  try {
    bytes = await storage.getBlob(RECOVERY_COPY_BLOB, { lengthMax: 8 * FORMAT_BYTES_MAX });
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_BLOB')) return undefined;
    throw error;
  }
  try {
    return copySchema.parse(JSON.parse(asBuffer(bytes).toString('utf8')));
  } catch {
    return undefined;
  }
}

export async function putRecoveryCopy(storage: BlobStorage, copy: RecoveryCopy): Promise<void> {
  const text = (bytes: Uint8Array): string => asBuffer(bytes).toString('base64');
  const encode = ({ repository, blobcfg }: FormatBlobs): object => ({
    repository: text(repository),
    ...(blobcfg && { blobcfg: text(blobcfg) }),
  });
  const json = JSON.stringify({ before: encode(copy.before), after: encode(copy.after) });
  await storage.putBlob(RECOVERY_COPY_BLOB, [Buffer.from(json)]);
}

/**
 * Whether a put of the new kopia.repository stopped half way, on a store that overwrites in place: first a part of
 * the new bytes, then what is left of the old ones.
 */
export function isTorn(found: Uint8Array, { before, after }: RecoveryCopy): boolean {
  const [oldBytes, newBytes] = [before.repository, after.repository];
  const isSame = (other: Uint8Array): boolean => Buffer.compare(found, other) === 0;
  if (isSame(oldBytes) || isSame(newBytes) || found.length !== oldBytes.length) return false;
  let at = 0;
  while (at < found.length && found[at] === newBytes[at]) at++;
  return Buffer.compare(found.subarray(at), oldBytes.subarray(at)) === 0;
}
