import { type ContentId, contentIdOfKey } from './content-id.ts';
import { comparePrecedence, type IndexEntry } from './entry.ts';
import {
  badIndex,
  FORMAT_BYTES_V2,
  type IndexLayout,
  PACK_BYTES_V2,
  parseLayout,
  type ByteSource,
} from './index-layout.ts';
import { RowCursor, type RowDecoder, ROWS_AT_ONCE } from './row-cursor.ts';

/** Bodies of up to this many rows are searched without a table. */
const UNTABLED_MAX = 128;
/**
 * Rows read on each side of the expected place of a key. Keys are as good as random. An index of
 * 100 million contents has 1,500 rows with the same first bytes, and nine of ten keys lie within
 * this distance.
 */
const GUESSED_ROWS = 32;
/** Version 1 does not store the plaintext length. Every content is sealed with this overhead. */
const OVERHEAD_V1 = 28;

/** `starts[d]`: first row of a prefix whose next two bytes, shifted right, are at least `d`. */
interface KeyTable {
  readonly shift: number;
  readonly starts: Uint32Array;
  /** Whether any row of the prefix is deleted. */
  readonly namesDeleted: boolean;
}

/** A cursor over the rows of a body. */
export type IndexRows = RowCursor<IndexBody>;

/**
 * Kopia's index body, version 1 or 2 (repo/content/index/index_v1.go, index_v2.go). Rows are
 * sorted, and lookups use binary search.
 */
export class IndexBody implements RowDecoder {
  readonly count: number;
  readonly keyBytes: number;
  readonly #source: ByteSource;
  readonly #layout: IndexLayout;
  readonly #packs = new Map<number, string>();
  readonly #formats: { headerId: number; version: number; keyId: number }[] = [];
  /** Lookup tables by prefix byte, created on first use. */
  readonly #tables: (KeyTable | undefined)[] = new Array<undefined>(256).fill(undefined);
  /** Whether any row is deleted. Used for bodies without tables. */
  #deletes: boolean | undefined;
  readonly #stride: number;
  #owners = 1;

  /** Checks the layout against the length. Takes ownership of the source. Throws `BAD_INDEX`. */
  constructor(source: ByteSource) {
    this.#source = source;
    this.#layout = parseLayout(source);
    this.count = this.#layout.count;
    this.keyBytes = this.#layout.keyBytes;
    this.#stride = this.keyBytes + this.#layout.entryBytes;
    for (let i = 0; i < this.#layout.formatCount; i++) {
      const format = this.#source.read(this.#layout.formatsAt + i * FORMAT_BYTES_V2, 6);
      this.#formats.push({
        headerId: format.readUInt32BE(0),
        version: format.readUInt8(4),
        keyId: format.readUInt8(5),
      });
    }
  }

  /** Adds an owner. The source closes when every owner has called close(). */
  share(): this {
    this.#owners++;
    return this;
  }

  close(): void {
    if (--this.#owners === 0) this.#source.close();
  }

  get lengthBytes(): number {
    return this.#source.lengthBytes;
  }

  /** Memory used; 0 if the body is in a file. */
  get memoryBytes(): number {
    return this.#source.whole ? this.#source.lengthBytes : 0;
  }

  get version(): 1 | 2 {
    return this.#layout.version;
  }

  /** Position of the key at `at`, or -1. */
  find(key: Uint8Array, at = 0, keyBytes = key.length): number {
    if (keyBytes !== this.keyBytes) return -1;
    const { entriesAt } = this.#layout;
    const stride = this.#stride;
    let from = 0;
    let to = this.count;
    // No destructuring here: an array for each lookup would be most of its cost.
    const table = this.#tableFor(key[at] as number);
    if (table) {
      const digit = (((key[at + 1] as number) << 8) | (key[at + 2] as number)) >>> table.shift;
      from = table.starts[digit] as number;
      to = table.starts[digit + 1] as number;
    }
    if (from >= to) return -1;
    const whole = this.#source.whole;
    if (!whole && table?.shift === 0 && to - from > 2 * GUESSED_ROWS) {
      // Estimate the place from the next bytes. Reading all these rows would take longer with a
      // longer index.
      const share = (((key[at + 3] as number) << 8) | (key[at + 4] as number)) / 0x10000;
      const guess = from + Math.floor((to - from) * share);
      const [first, last] = [
        Math.max(from, guess - GUESSED_ROWS),
        Math.min(to, guess + GUESSED_ROWS),
      ];
      const part = this.#source.read(entriesAt + first * stride, (last - first) * stride);
      const end = (last - 1 - first) * stride;
      // Rows with the same key may cross the edge of the part.
      const isBelow = first === from || compareKey(part, 0, key, at, keyBytes) < 0;
      const isAbove = last === to || compareKey(part, end, key, at, keyBytes) > 0;
      if (isBelow && isAbove) [from, to] = [first, last];
    }
    // In a file, read all remaining rows at once.
    const page = whole ?? this.#source.read(entriesAt + from * stride, (to - from) * stride);
    const base = whole ? entriesAt : -from * stride;
    for (let low = from, high = to; low < high;) {
      const middle = (low + high) >>> 1;
      const order = compareKey(page, base + middle * stride, key, at, keyBytes);
      if (order === 0) {
        const isKey = (position: number): boolean =>
          compareKey(page, base + position * stride, key, at, keyBytes) === 0;
        let [first, last] = [middle, middle];
        while (first > from && isKey(first - 1)) first--;
        while (last + 1 < to && isKey(last + 1)) last++;
        return first === last ? middle : this.#preferred(first, last);
      }
      if (order < 0) low = middle + 1;
      else high = middle;
    }
    return -1;
  }

  /**
   * Calls `found` with the position of each row that has one of these keys. All keys share a prefix
   * and are sorted by their next two bytes, so nearby keys need one read. `found` must not read
   * from this body.
   */
  findSorted(
    { keys, order, from: first, to: last, keyBytes }: SortedKeys,
    found: (position: number) => void,
  ): void {
    if (keyBytes !== this.keyBytes || last <= first) return;
    const { entriesAt } = this.#layout;
    const stride = this.#stride;
    const whole = this.#source.whole;
    const table = this.#tableFor(keys[(order[first] as number) * keyBytes] as number);
    let digit = -1;
    let [from, to, base] = [0, this.count, entriesAt];
    let page = whole;
    for (let i = first; i < last; i++) {
      const at = (order[i] as number) * keyBytes;
      const next = table
        ? (((keys[at + 1] as number) << 8) | (keys[at + 2] as number)) >>> table.shift
        : 0;
      if (next !== digit) {
        digit = next;
        from = table ? (table.starts[digit] as number) : 0;
        to = table ? (table.starts[digit + 1] as number) : this.count;
        page = whole ?? this.#source.read(entriesAt + from * stride, (to - from) * stride);
        base = whole ? entriesAt : -from * stride;
      }
      let [low, high] = [from, to];
      while (low < high) {
        const middle = (low + high) >>> 1;
        if (compareKey(page as Buffer, base + middle * stride, keys, at, keyBytes) < 0)
          low = middle + 1;
        else high = middle;
      }
      // Bodies of early versions may name a content several times.
      for (; low < to; low++) {
        if (compareKey(page as Buffer, base + low * stride, keys, at, keyBytes) !== 0) break;
        found(low);
      }
    }
  }

  /** Whether all keys are in order, so that lookups find them. Reads all rows. */
  isSorted(): boolean {
    const { entriesAt } = this.#layout;
    const stride = this.#stride;
    const last = Buffer.alloc(this.keyBytes);
    for (let position = 0; position < this.count;) {
      const count = Math.min(ROWS_AT_ONCE, this.count - position);
      const bytes = this.#source.read(entriesAt + position * stride, count * stride);
      if (compareKey(bytes, 0, last, 0, this.keyBytes) < 0) return false;
      for (let at = stride; at < count * stride; at += stride) {
        if (compareKey(bytes, at, bytes, at - stride, this.keyBytes) < 0) return false;
      }
      bytes.copy(last, 0, (count - 1) * stride, (count - 1) * stride + this.keyBytes);
      position += count;
    }
    return true;
  }

  /** Whether any row with this first key byte is deleted. In a short body: any row at all. */
  mayDelete(prefix: number): boolean {
    const table = this.#tableFor(prefix);
    if (table) return table.namesDeleted;
    this.#deletes ??= Array.from({ length: this.count }, (_row, i) => i).some((position) =>
      this.isDeletedAt(position),
    );
    return this.#deletes;
  }

  /**
   * The winning row among rows with the same key. Early versions wrote several rows for a content
   * that was stored twice at once.
   */
  #preferred(first: number, last: number): number {
    let best = first;
    for (let position = first + 1; position <= last; position++) {
      if (comparePrecedence(this.entryAt(position), this.entryAt(best)) > 0) best = position;
    }
    return best;
  }

  /** First position whose key is at least `key`. */
  lowerBound(key: Uint8Array): number {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (Buffer.compare(this.keyAt(middle), key) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Valid until the next read. */
  keyAt(position: number): Buffer {
    return this.#source.read(this.#layout.entriesAt + position * this.#stride, this.keyBytes);
  }

  /** Throws `BAD_INDEX` for an entry that points outside of the tables. */
  entryAt(position: number): IndexEntry {
    const at = this.#layout.entriesAt + position * this.#stride;
    return this.decode(this.#source.read(at, this.#stride), 0);
  }

  /** Whether the entry at a position is deleted. */
  isDeletedAt(position: number): boolean {
    const at = this.#layout.entriesAt + position * this.#stride + this.keyBytes + this.#deletedAt;
    const { whole } = this.#source;
    return (((whole ? whole[at] : this.#source.read(at, 1)[0]) as number) & 0x80) !== 0;
  }

  /**
   * Offset, behind the key, of the byte with the deletion bit: the top bit of the pack offset. That
   * is the fourth number of version 1 and the second of version 2.
   */
  get #deletedAt(): number {
    return this.version === 1 ? 12 : 4;
  }

  /** Rows from a position, in key order. */
  rows(from = 0, to = this.count): IndexRows {
    const { entriesAt } = this.#layout;
    const stride = this.#stride;
    const read = (position: number, count: number): Buffer =>
      this.#source.read(entriesAt + position * stride, count * stride);
    return new RowCursor(this, { from, to, stride, read, inMemory: this.memoryBytes > 0 });
  }

  /** Undefined for a body that is searched without tables. */
  #tableFor(prefix: number): KeyTable | undefined {
    if (this.count <= UNTABLED_MAX || this.keyBytes < 3) return undefined;
    let table = this.#tables[prefix];
    if (!table) this.#tables[prefix] = table = this.#makeTable(prefix);
    return table;
  }

  /** Start positions of a prefix's keys by their first one or two bytes. */
  #makeTable(prefix: number): KeyTable {
    const from = this.lowerBound(Uint8Array.of(prefix));
    const to = prefix === 255 ? this.count : this.lowerBound(Uint8Array.of(prefix + 1));
    const shift = to - from > UNTABLED_MAX * 256 ? 0 : 8;
    const starts = new Uint32Array((0x10000 >>> shift) + 1).fill(to);
    const flagsAt = this.keyBytes + this.#deletedAt;
    const stride = this.#stride;
    let next = 0;
    let deleted = 0;
    for (let position = from; position < to;) {
      const count = Math.min(ROWS_AT_ONCE, to - position);
      const bytes = this.#source.read(this.#layout.entriesAt + position * stride, count * stride);
      const end = position + count;
      for (let at = 0; position < end; position++, at += stride) {
        const digit = (((bytes[at + 1] as number) << 8) | (bytes[at + 2] as number)) >>> shift;
        // Keys are unsorted only in damaged bodies, and lookups miss such keys.
        while (next <= digit) starts[next++] = position;
        deleted |= bytes[at + flagsAt] as number;
      }
    }
    return { shift, starts, namesDeleted: (deleted & 0x80) !== 0 };
  }

  /** The entry of a row. Throws `BAD_INDEX` like {@link entryAt}. */
  decode(bytes: Buffer, at: number): IndexEntry {
    const contentId = contentIdOfKey(bytes.subarray(at, at + this.keyBytes));
    const entryAt = at + this.keyBytes;
    return this.#layout.version === 1
      ? this.#decodeV1(contentId, bytes, entryAt)
      : this.#decodeV2(contentId, bytes, entryAt);
  }

  #decodeV1(contentId: ContentId, bytes: Buffer, at: number): IndexEntry {
    const flags = bytes.readUInt32BE(at + 12);
    const packedLength = bytes.readUInt32BE(at + 16);
    return {
      contentId,
      timestampSeconds: bytes.readUIntBE(at, 6),
      formatVersion: bytes.readUInt8(at + 6),
      packBlobId: this.#name(bytes.readUInt32BE(at + 8), bytes.readUInt8(at + 7)),
      deleted: flags >= 0x80000000,
      packOffset: flags & 0x7fffffff,
      packedLength,
      originalLength: Math.max(0, packedLength - OVERHEAD_V1),
      compressionHeaderId: 0,
      encryptionKeyId: 0,
    };
  }

  #decodeV2(contentId: ContentId, bytes: Buffer, at: number): IndexEntry {
    const flags = bytes.readUInt32BE(at + 4);
    const { timestampSeconds, pack, formatNumber, high } = this.fieldsV2(bytes, at);
    const format = this.formatAt(formatNumber);
    const originalLength = bytes.readUIntBE(at + 8, 3) + (high >> 4) * 0x1000000;
    const packedLength = bytes.readUIntBE(at + 11, 3) + (high & 15) * 0x1000000;
    return {
      contentId,
      timestampSeconds,
      // Keep this last: the lookup of the name may overwrite `bytes`.
      packBlobId: this.packAt(pack),
      deleted: flags >= 0x80000000,
      packOffset: flags & 0x7fffffff,
      originalLength,
      packedLength,
      formatVersion: format.version,
      compressionHeaderId: format.headerId,
      encryptionKeyId: format.keyId,
    };
  }

  /** Whether the row that starts at `at` is deleted. */
  deletedOf(bytes: Uint8Array, at: number): boolean {
    return ((bytes[at + this.keyBytes + this.#deletedAt] as number) & 0x80) !== 0;
  }

  /** The original length, as in {@link decode}. */
  originalLengthOf(bytes: Buffer, at: number): number {
    const entryAt = at + this.keyBytes;
    if (this.version === 1) return Math.max(0, bytes.readUInt32BE(entryAt + 16) - OVERHEAD_V1);
    const high = this.#layout.entryBytes > 18 ? (bytes[entryAt + 18] as number) >> 4 : 0;
    return bytes.readUIntBE(entryAt + 8, 3) + high * 0x1000000;
  }

  /** The pack name, as in {@link decode}. Throws `BAD_INDEX`. */
  packOf(bytes: Buffer, at: number): string {
    const entryAt = at + this.keyBytes;
    if (this.version === 1)
      return this.#name(bytes.readUInt32BE(entryAt + 8), bytes.readUInt8(entryAt + 7));
    const high = this.#layout.entryBytes > 17 ? (bytes[entryAt + 17] as number) : 0;
    return this.packAt(bytes.readUInt16BE(entryAt + 14) + high * 65_536);
  }

  /** The packed length, as in {@link decode}. */
  packedLengthOf(bytes: Buffer, at: number): number {
    const entryAt = at + this.keyBytes;
    if (this.version === 1) return bytes.readUInt32BE(entryAt + 16);
    const high = this.#layout.entryBytes > 18 ? (bytes[entryAt + 18] as number) & 15 : 0;
    return bytes.readUIntBE(entryAt + 11, 3) + high * 0x1000000;
  }

  /** The version 2 fields that depend on this body. `at` is behind the key. */
  fieldsV2(
    bytes: Buffer,
    at: number,
  ): { timestampSeconds: number; pack: number; formatNumber: number; high: number } {
    const { entryBytes, baseTimestamp } = this.#layout;
    const packHigh = entryBytes > 17 ? (bytes[at + 17] as number) : 0;
    return {
      timestampSeconds: bytes.readUInt32BE(at) + baseTimestamp,
      pack: bytes.readUInt16BE(at + 14) + packHigh * 65_536,
      formatNumber: entryBytes > 16 ? (bytes[at + 16] as number) : 0,
      high: entryBytes > 18 ? (bytes[at + 18] as number) : 0,
    };
  }

  /** Throws `BAD_INDEX`. */
  formatAt(index: number): { headerId: number; version: number; keyId: number } {
    const format = this.#formats[index];
    if (!format) throw badIndex('an entry refers to a format that is not in the table');
    return format;
  }

  /** The pack's blob ID. Throws `BAD_INDEX`. */
  packAt(index: number): string {
    const known = this.#packs.get(index);
    if (known !== undefined) return known;
    if (index >= this.#layout.packCount)
      throw badIndex('an entry refers to a pack that is not in the table');
    const row = this.#source.read(this.#layout.packsAt + index * PACK_BYTES_V2, PACK_BYTES_V2);
    const length = row.readUInt8(0);
    const name = this.#name(row.readUInt32BE(1), length);
    this.#packs.set(index, name);
    return name;
  }

  /** Whether the body may name one of these packs. Always true in version 1. */
  namesPack(packs: ReadonlySet<string>): boolean {
    if (this.version === 1) return true;
    for (let i = 0; i < this.#layout.packCount; i++) if (packs.has(this.packAt(i))) return true;
    return false;
  }

  #name(at: number, length: number): string {
    if (at + length > this.#source.lengthBytes) throw badIndex('a pack name lies outside the body');
    return this.#source.read(at, length).toString('latin1');
  }
}

/** Keys without gaps. `order[from]` to `order[to - 1]` number the keys to use. */
export interface SortedKeys {
  readonly keys: Uint8Array;
  readonly order: Uint32Array;
  readonly from: number;
  readonly to: number;
  readonly keyBytes: number;
}

function compareKey(
  bytes: Uint8Array,
  at: number,
  key: Uint8Array,
  keyAt: number,
  keyBytes: number,
): number {
  for (let i = 0; i < keyBytes; i++) {
    const difference = (bytes[at + i] as number) - (key[keyAt + i] as number);
    if (difference !== 0) return difference;
  }
  return 0;
}
