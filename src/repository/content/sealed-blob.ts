import { createWriteStream } from 'node:fs';
import { once } from 'node:events';
import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import type { BlobId, BlobMetadata, BlobStorage } from '../../blob/index.ts';
import { blobId } from '../../blob/index.ts';
import type { ContentHasher, Encryptor } from '../../codec/index.ts';
import { fileSource, IndexBody, memorySource } from '../index/index-body.ts';
import { openScratchFile } from '../index/merge.ts';

/** Hash and encryption of one repository, for the main thread. */
export interface BlobCodec {
  readonly hasher: ContentHasher;
  readonly encryptor: Encryptor;
}

/** Kopia: repo/content/content_manager_indexes.go, parallelFetches. */
const INDEX_READS_MAX = 5;
/** A longer index blob is decrypted in pieces to a scratch file. Our choice. */
const IN_MEMORY_BYTES_MAX = 8 << 20;
const PIECE_BYTES = 4 << 20;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

export function damagedBlob(id: string, what: string, cause?: unknown): CodedError {
  return new CodedError('DAMAGED_BLOB', `blob ${id} is damaged: ${what}`, {
    cause,
    facts: { blobId: id },
  });
}

/** The IV that a blob's own name gives: the last 32 hex digits before the first dash. */
function ivOfBlob(id: BlobId): Uint8Array {
  const digits = (id.split('-')[0] ?? '').slice(-32);
  if (!/^[0-9a-f]{32}$/.test(digits)) throw damagedBlob(id, 'its name holds no hash');
  return Buffer.from(digits, 'hex');
}

/** Seals a blob whose name is made of its hash; `suffix` is what follows the hash. */
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
  try {
    return codec.encryptor.open(sealed, ivOfBlob(id));
  } catch (cause) {
    if (isCode(cause, 'DECRYPT_FAILED')) throw damagedBlob(id, 'it cannot be decrypted', cause);
    throw cause;
  }
}

/**
 * Loads index blobs, some at a time, and hands each on as it comes; the receiver owns it.
 * Throws `BLOB_NOT_FOUND` when one went away, `DAMAGED_BLOB`.
 */
export async function forEachIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blobs: readonly BlobMetadata[],
  receive: (body: IndexBody) => void,
): Promise<void> {
  // Reused: what reads leave behind is collected late.
  const idle: Uint8Array[] = [];
  await mapLimited(blobs, INDEX_READS_MAX, async (blob) => {
    let buffer = idle.pop();
    if (blob.lengthBytes <= IN_MEMORY_BYTES_MAX && (buffer?.length ?? 0) < blob.lengthBytes)
      buffer = Buffer.allocUnsafeSlow(blob.lengthBytes);
    receive(await loadIndexBlob(storage, codec, blob, buffer));
    if (buffer) idle.push(buffer);
  });
}

/** The same, all at once: for compactions, whose inputs have a bound. */
export async function loadIndexBlobs(
  storage: BlobStorage,
  codec: BlobCodec,
  blobs: readonly BlobMetadata[],
): Promise<IndexBody[]> {
  const loaded: IndexBody[] = [];
  try {
    await forEachIndexBlob(storage, codec, blobs, (body) => loaded.push(body));
    return loaded;
  } catch (error) {
    for (const body of loaded) body.close();
    throw error;
  }
}

async function loadIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blob: BlobMetadata,
  into: Uint8Array | undefined,
): Promise<IndexBody> {
  try {
    return await readIndexBlob(storage, codec, blob, { into });
  } catch (error) {
    if (!isCode(error, 'DAMAGED_BLOB')) throw error;
    // Bytes may have changed on their way, or in a cache: the storage has the last word.
    return readIndexBlob(storage, codec, blob, { into, fresh: true });
  }
}

async function readIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blob: BlobMetadata,
  options: { into: Uint8Array | undefined; fresh?: boolean },
): Promise<IndexBody> {
  const source =
    blob.lengthBytes > IN_MEMORY_BYTES_MAX
      ? fileSource(await decryptToFile(storage, codec, blob))
      : memorySource(openBlob(codec, blob.id, await storage.getBlob(blob.id, options)));
  try {
    return new IndexBody(source);
  } catch (cause) {
    source.close();
    throw damagedBlob(blob.id, 'it is not an index', cause);
  }
}

async function decryptToFile(
  storage: BlobStorage,
  codec: BlobCodec,
  { id, lengthBytes }: BlobMetadata,
): Promise<number> {
  const descriptor = openScratchFile();
  const nonce = await storage.getBlob(id, { offset: 0, lengthBytes: NONCE_BYTES });
  const opener = codec.encryptor.openStream(nonce, ivOfBlob(id));
  const out = createWriteStream('', { fd: descriptor, autoClose: false });
  try {
    const end = lengthBytes - TAG_BYTES;
    for (let offset = NONCE_BYTES; offset < end; offset += PIECE_BYTES) {
      const wanted = Math.min(PIECE_BYTES, end - offset);
      const piece = await storage.getBlob(id, { offset, lengthBytes: wanted });
      if (!out.write(opener.update(piece))) await once(out, 'drain');
    }
    opener.final(await storage.getBlob(id, { offset: end, lengthBytes: TAG_BYTES }));
  } catch (cause) {
    if (isCode(cause, 'DECRYPT_FAILED')) throw damagedBlob(id, 'it cannot be decrypted', cause);
    throw cause;
  } finally {
    out.end();
    await once(out, 'finish');
  }
  return descriptor;
}
