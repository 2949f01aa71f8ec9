import type { IndexEntry } from './entry.ts';
import { badIndex } from './index-layout.ts';

/** Decodes the fields of a row that starts at `at`. */
export interface RowDecoder {
  readonly keyBytes: number;
  deletedOf(bytes: Uint8Array, at: number): boolean;
  originalLengthOf(bytes: Buffer, at: number): number;
  /** Throws `BAD_INDEX`. */
  packOf(bytes: Buffer, at: number): string;
  packedLengthOf(bytes: Buffer, at: number): number;
  /** Throws `BAD_INDEX`. */
  decode(bytes: Buffer, at: number): IndexEntry;
}

interface RowRange {
  from: number;
  to: number;
  stride: number;
  read: (position: number, count: number) => Buffer;
  inMemory: boolean;
}

/** Rows read from a file at once, about 64 KiB. */
export const ROWS_AT_ONCE = 2048;

/** Iterates over the rows of a body. Fields are decoded on access. */
export class RowCursor<B extends RowDecoder> {
  readonly body: B;
  readonly keyBytes: number;
  /** The bytes that hold the row, which starts at {@link at}. */
  bytes: Buffer = Buffer.alloc(0);
  at = 0;
  /** The first six key bytes as a number, which decide nearly every comparison. */
  #head = 0;
  #position: number;
  #left = 0;
  readonly #range: RowRange;

  constructor(body: B, range: RowRange) {
    this.body = body;
    this.keyBytes = body.keyBytes;
    this.#range = range;
    this.#position = range.from;
    this.at = -range.stride;
  }

  /** Moves to the next row. Returns false after the last. */
  next(): boolean {
    const { stride, to } = this.#range;
    if (this.#left === 0) {
      const count = Math.min(ROWS_AT_ONCE, to - this.#position);
      if (count <= 0) return false;
      const bytes = this.#range.read(this.#position, count);
      if (bytes.length < count * stride) throw badIndex('entries cut short');
      if (this.#range.inMemory) this.bytes = bytes;
      else {
        if (this.bytes.length < bytes.length) this.bytes = Buffer.allocUnsafeSlow(bytes.length);
        bytes.copy(this.bytes);
      }
      this.#position += count;
      this.#left = count;
      this.at = -stride;
    }
    this.#left--;
    this.at += stride;
    this.#head = this.keyBytes >= 6 ? this.bytes.readUIntBE(this.at, 6) : 0;
    return true;
  }

  /** Compares the keys. */
  compare(other: RowCursor<B>): number {
    if (this.#head !== other.#head) return this.#head - other.#head;
    return this.bytes.compare(
      other.bytes,
      other.at,
      other.at + other.keyBytes,
      this.at,
      this.at + this.keyBytes,
    );
  }

  copyKey(target: Buffer, offset: number): void {
    this.bytes.copy(target, offset, this.at, this.at + this.keyBytes);
  }

  /** Position of the row in its body. */
  get position(): number {
    return this.#position - this.#left - 1;
  }

  /** First byte of the key. */
  get prefix(): number {
    return this.bytes[this.at] as number;
  }

  get deleted(): boolean {
    return this.body.deletedOf(this.bytes, this.at);
  }

  /** Single fields, for callers that count: each is a number, without an object. */
  get originalLength(): number {
    return this.body.originalLengthOf(this.bytes, this.at);
  }

  /** Throws `BAD_INDEX`. */
  get packBlobId(): string {
    return this.body.packOf(this.bytes, this.at);
  }

  get packedLength(): number {
    return this.body.packedLengthOf(this.bytes, this.at);
  }

  /** Throws `BAD_INDEX`. */
  get entry(): IndexEntry {
    return this.body.decode(this.bytes, this.at);
  }
}
