import { contentIdOfKey, keyBytesOf, writeContentKey } from '../index/content-id.ts';
import type { IndexEntry } from '../index/entry.ts';

/** Timestamp and offset, both lengths, compression and encryption, format version and deletion. */
const FIELD_BYTES = 8 + 4 + 4 + 4 + 4 + 1 + 1 + 1;
/** Initial capacity in rows. */
const ROWS_MIN = 8;

/**
 * Entries of one pack, in the order added. A million entries take about 60 MB as bytes. As objects
 * they would take about 400 MB, more than a verifying process gets.
 */
export class EntryList {
  readonly #packBlobId: string;
  readonly #rowBytes: number;
  readonly #keyBytes: number;
  #bytes: Buffer;
  #count = 0;

  /** All entries must have the pack and key length of `first`. */
  constructor(first: IndexEntry) {
    this.#packBlobId = first.packBlobId;
    this.#keyBytes = keyBytesOf(first.contentId);
    this.#rowBytes = this.#keyBytes + FIELD_BYTES;
    this.#bytes = Buffer.allocUnsafeSlow(ROWS_MIN * this.#rowBytes);
  }

  /** Returns false if the key has another length. */
  add(entry: IndexEntry): boolean {
    if (keyBytesOf(entry.contentId) !== this.#keyBytes) return false;
    if ((this.#count + 1) * this.#rowBytes > this.#bytes.length) this.#grow();
    const bytes = this.#bytes;
    let at = this.#count++ * this.#rowBytes;
    writeContentKey(entry.contentId, bytes, at);
    at = bytes.writeDoubleLE(entry.timestampSeconds, at + this.#keyBytes);
    at = bytes.writeUInt32LE(entry.packOffset, at);
    at = bytes.writeUInt32LE(entry.packedLength, at);
    at = bytes.writeUInt32LE(entry.originalLength, at);
    at = bytes.writeUInt32LE(entry.compressionHeaderId, at);
    at = bytes.writeUInt8(entry.encryptionKeyId, at);
    at = bytes.writeUInt8(entry.formatVersion, at);
    bytes.writeUInt8(entry.deleted ? 1 : 0, at);
    return true;
  }

  #grow(): void {
    const larger = Buffer.allocUnsafeSlow(Math.ceil(this.#bytes.length * 1.5));
    this.#bytes.copy(larger);
    this.#bytes = larger;
  }

  /** Creates new objects at each call. */
  entries(): IndexEntry[] {
    return Array.from({ length: this.#count }, (_, i) => this.#entryAt(i * this.#rowBytes));
  }

  #entryAt(start: number): IndexEntry {
    const bytes = this.#bytes;
    const at = start + this.#keyBytes;
    return {
      contentId: contentIdOfKey(bytes.subarray(start, at)),
      packBlobId: this.#packBlobId,
      timestampSeconds: bytes.readDoubleLE(at),
      packOffset: bytes.readUInt32LE(at + 8),
      packedLength: bytes.readUInt32LE(at + 12),
      originalLength: bytes.readUInt32LE(at + 16),
      compressionHeaderId: bytes.readUInt32LE(at + 20),
      encryptionKeyId: bytes.readUInt8(at + 24),
      formatVersion: bytes.readUInt8(at + 25),
      deleted: bytes.readUInt8(at + 26) !== 0,
    };
  }
}
