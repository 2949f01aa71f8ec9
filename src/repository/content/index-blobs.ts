import { CodedError, isCode, mapLimited, unixSeconds } from '../../base/index.ts';
import { assertLength, type BlobMetadata, type BlobStorage } from '../../blob/index.ts';
import { memorySource } from '../index/byte-source.ts';
import { IndexBody } from '../index/index-body.ts';
import type { ByteSource } from '../index/index-layout.ts';
import { ScratchFile } from '../index/scratch-file.ts';
import type { SignalOptions } from './index-store.ts';
import { type BlobCodec, damagedBlob, ivOfBlob, openBlob } from './sealed-blob.ts';

/** Kopia: repo/content/content_manager_indexes.go, parallelFetches. */
const INDEX_READS_MAX = 5;
/** Longer index blobs are decrypted in pieces to a scratch file. Our choice. */
const IN_MEMORY_BYTES_MAX = 8 << 20;
/** Kopia puts up to 16 million entries of 34 to 52 bytes into one index blob, plus pack names. */
const INDEX_BYTES_MAX = 2 * 2 ** 30;
const READ_BYTES = 4 << 20;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/**
 * Loads several index blobs at a time and passes each to `receive`, which owns it. Throws
 * `DAMAGED_BLOB`, or `BLOB_NOT_FOUND` if a blob was deleted.
 */
export async function forEachIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blobs: readonly BlobMetadata[],
  receive: (body: IndexBody) => void,
  { signal, onDamaged }: ForEachOptions = {},
): Promise<void> {
  // Read buffers are reused, because garbage collection frees them late.
  const idle: Uint8Array[] = [];
  await mapLimited(blobs, INDEX_READS_MAX, async (blob) => {
    signal?.throwIfAborted();
    let buffer = idle.pop();
    if (blob.lengthBytes <= IN_MEMORY_BYTES_MAX && (buffer?.length ?? 0) < blob.lengthBytes)
      buffer = Buffer.allocUnsafeSlow(blob.lengthBytes);
    try {
      receive(await loadIndexBlob(storage, codec, blob, { into: buffer, signal }));
    } catch (error) {
      if (!onDamaged || !isCode(error, 'DAMAGED_BLOB')) throw error;
      const writtenSeconds = unixSeconds(blob.timestampNs);
      const { message, cause, facts } = error;
      onDamaged(
        new CodedError('DAMAGED_BLOB', message, { cause, facts: { ...facts, writtenSeconds } }),
      );
    }
    if (buffer) idle.push(buffer);
  });
}

interface ForEachOptions extends SignalOptions {
  /** Receives `DAMAGED_BLOB` with the fact `writtenSeconds`. The other blobs are still loaded. */
  readonly onDamaged?: (error: CodedError) => void;
}

interface ReadOptions {
  /** Memory to read into. Ignored if shorter than the blob. */
  readonly into?: Uint8Array | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly fresh?: boolean;
}

/** Loads one index blob. The caller closes it. Throws like {@link forEachIndexBlob}. */
export async function loadIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blob: BlobMetadata,
  options: ReadOptions = {},
): Promise<IndexBody> {
  try {
    return await readIndexBlob(storage, codec, blob, options);
  } catch (error) {
    if (!isCode(error, 'DAMAGED_BLOB')) throw error;
    // The bytes may have changed in transit or in a cache: read them from the storage again.
    return readIndexBlob(storage, codec, blob, { ...options, fresh: true });
  }
}

async function readIndexBlob(
  storage: BlobStorage,
  codec: BlobCodec,
  blob: BlobMetadata,
  options: ReadOptions,
): Promise<IndexBody> {
  assertLength(blob.id, blob.lengthBytes, INDEX_BYTES_MAX);
  // The blob may have been replaced since the listing.
  const whole = { ...options, lengthMax: IN_MEMORY_BYTES_MAX };
  const source =
    blob.lengthBytes > IN_MEMORY_BYTES_MAX
      ? await decryptToFile(storage, codec, blob, options)
      : memorySource(openBlob(codec, blob.id, await storage.getBlob(blob.id, whole)));
  try {
    return new IndexBody(source);
  } catch (cause) {
    source.close();
    throw damagedBlob(blob.id, 'it is not an index', cause);
  }
}

/** Throws `SCRATCH_FULL` if the file does not fit. */
async function decryptToFile(
  storage: BlobStorage,
  codec: BlobCodec,
  { id, lengthBytes }: BlobMetadata,
  { fresh = false, signal }: ReadOptions,
): Promise<ByteSource> {
  const read = (offset: number, length: number): Promise<Uint8Array> =>
    storage.getBlob(id, { offset, lengthBytes: length, fresh, signal });
  const scratch = new ScratchFile();
  try {
    const opener = codec.encryptor.openStream(await read(0, NONCE_BYTES), ivOfBlob(id));
    const end = lengthBytes - TAG_BYTES;
    for (let offset = NONCE_BYTES; offset < end; offset += READ_BYTES) {
      const piece = await read(offset, Math.min(READ_BYTES, end - offset));
      scratch.write(opener.update(piece), offset - NONCE_BYTES);
    }
    opener.final(await read(end, TAG_BYTES));
    return scratch.toSource();
  } catch (cause) {
    scratch.close();
    if (isCode(cause, 'DECRYPT_FAILED')) throw damagedBlob(id, 'it cannot be decrypted', cause);
    throw cause;
  }
}
