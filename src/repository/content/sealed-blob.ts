import { CodedError, isCode } from '../../base/index.ts';
import { type BlobId, blobId } from '../../blob/index.ts';
import type { ContentHasher, Encryptor } from '../../codec/index.ts';

/** Hash and encryption of one repository, for the main thread. */
export interface BlobCodec {
  readonly hasher: ContentHasher;
  readonly encryptor: Encryptor;
}

export function damagedBlob(id: string, what: string, cause?: unknown): CodedError {
  return new CodedError('DAMAGED_BLOB', `blob ${id} is damaged: ${what}`, {
    cause,
    facts: { blobId: id },
  });
}

/** The IV in a blob's name: the last 32 hex digits before the first dash. */
export function ivOfBlob(id: BlobId): Uint8Array {
  const digits = (id.split('-')[0] ?? '').slice(-32);
  if (!/^[0-9a-f]{32}$/.test(digits)) throw damagedBlob(id, 'its name holds no hash');
  return Buffer.from(digits, 'hex');
}

/** Seals a blob and names it by its hash. `suffix` follows the hash. */
export function sealBlob(
  codec: BlobCodec,
  prefix: string,
  suffix: string,
  plaintext: Uint8Array,
): { id: BlobId; bytes: Uint8Array } {
  const hash = Buffer.from(codec.hasher.hash([plaintext])).toString('hex');
  const id = blobId(`${prefix}${hash}${suffix}`);
  const bytes = new Uint8Array(plaintext.length + codec.encryptor.overheadBytes);
  codec.encryptor.seal([plaintext], ivOfBlob(id), bytes);
  return { id, bytes };
}

/** Throws `DAMAGED_BLOB`. */
export function openBlob(codec: BlobCodec, id: BlobId, sealed: Uint8Array): Uint8Array {
  if (sealed.length === 0) throw damagedBlob(id, 'it is empty');
  try {
    return codec.encryptor.open(sealed, ivOfBlob(id));
  } catch (cause) {
    if (isCode(cause, 'DECRYPT_FAILED')) throw damagedBlob(id, 'it cannot be decrypted', cause);
    throw cause;
  }
}
