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

/** Bodies up to this are bisected whole. */
const UNTABLED_MAX = 128;
/**
 * Rows on each side of the place where a key is expected. Keys are as good as random: of 1,500 rows
 * with the same first bytes, as an index of 100 million has, nine of ten are found no farther away.
 */
const GUESSED_ROWS = 32;
/** Length that version 1 does not store: every content is sealed with this overhead. */
const OVERHEAD_V1 = 28;

/** `starts[d]`: first position of a prefix whose next bytes, shifted, are at least `d`. */
interface KeyTable {
  readonly shift: number;
  readonly starts: Uint32Array;
  /** Whether any row of the prefix is a deleted one. */
  readonly namesDeleted: boolean;
}

/** Rows of a body, one after the other. */
export type IndexRows = RowCursor<IndexBody>;

/**
 * Kopia's index body, version 1 or 2 (repo/content/index/index_v1.go, index_v2.go). Sorted;
 * look-ups by bisection.
 */
export class IndexBody implements RowDecoder {
  readonly count: number;
  readonly keyBytes: number;
  readonly #source: ByteSource;
  readonly #layout: IndexLayout;
  readonly #packs = new Map<number, string>();
  readonly #formats: { headerId: number; version: number; keyId: number }[] = [];
  /** By prefix byte, made on first use. */
  readonly #tables: (KeyTable | undefined)[] = new Array<undefined>(256).fill(undefined);
  /** Of a body that is bisected whole. */
  #deletes: boolean | undefined;
  readonly #stride: number;
  #owners = 1;

  /** Checks the layout against the length; throws `BAD_INDEX`. Owns the source. */
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

  /** One more owner: the source is closed when each has closed it once. */
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

  /** What it takes of the memory; 0 when it lies in a file. */
  get memoryBytes(): number {
    return this.#source.whole ? this.#source.lengthBytes : 0;
  }

  /** The version of the format. */
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
    // An array of two for each look-up would be most of its cost.
    const table = this.#tableFor(key[at] as number);
    if (table) {
      const digit = (((key[at + 1] as number) << 8) | (key[at + 2] as number)) >>> table.shift;
      from = table.starts[digit] as number;
      to = table.starts[digit + 1] as number;
    }
    if (from >= to) return -1;
    const whole = this.#source.whole;
    if (!whole && table?.shift === 0 && to - from > 2 * GUESSED_ROWS) {
      // The next bytes say about where among these the key is: to read all of them would take
      // longer the longer the index is.
      const share = (((key[at + 3] as number) << 8) | (key[at + 4] as number)) / 0x10000;
      const guess = from + Math.floor((to - from) * share);
      const [first, last] = [
        Math.max(from, guess - GUESSED_ROWS),
        Math.min(to, guess + GUESSED_ROWS),
      ];
      const part = this.#source.read(entriesAt + first * stride, (last - first) * stride);
      const end = (last - 1 - first) * stride;
      // Rows of the same key may lie on both sides of an end.
      const isBelow = first === from || compareKey(part, 0, key, at, keyBytes) < 0;
      const isAbove = last === to || compareKey(part, end, key, at, keyBytes) > 0;
      if (isBelow && isAbove) [from, to] = [first, last];
    }
    // In a file, all that is left is read at once.
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
   * Calls back with the position of each row that has one of these keys, which all begin with one
   * prefix and are in the order of their next two bytes: keys that are near each other are found in
   * one read. The callback must not read from this body.
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
      // Of early versions there are bodies that name a content several times.
      for (; low < to; low++) {
        if (compareKey(page as Buffer, base + low * stride, keys, at, keyBytes) !== 0) break;
        found(low);
      }
    }
  }

  /** Whether each key is at its place, where look-ups find it; goes over all rows. */
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

  /** Whether any row with this first byte of the key is a deleted one; of a short body, any row. */
  mayDelete(prefix: number): boolean {
    const table = this.#tableFor(prefix);
    if (table) return table.namesDeleted;
    this.#deletes ??= Array.from({ length: this.count }, (_row, i) => i).some((position) =>
      this.isDeletedAt(position),
    );
    return this.#deletes;
  }

  /**
   * Of these rows. Early versions named a content several times in one body, where it was stored so
   * at once.
   */
  #preferred(first: number, last: number): number {
    let best = first;
    for (let position = first + 1; position <= last; position++) {
      if (comparePrecedence(this.entryAt(position), this.entryAt(best)) > 0) best = position;
    }
    return best;
  }

  /** First position whose key is not below the key. */
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

  /** Whether the entry at a position is a deleted one. */
  isDeletedAt(position: number): boolean {
    const at = this.#layout.entriesAt + position * this.#stride + this.keyBytes + this.#deletedAt;
    const { whole } = this.#source;
    return (((whole ? whole[at] : this.#source.read(at, 1)[0]) as number) & 0x80) !== 0;
  }

  /**
   * Behind the key: the first bit of the offset, the fourth number of version 1, the second of
   * version 2.
   */
  get #deletedAt(): number {
    return this.version === 1 ? 12 : 4;
  }

  /** Rows from a position on, in key order. */
  rows(from = 0, to = this.count): IndexRows {
    const { entriesAt } = this.#layout;
    const stride = this.#stride;
    const read = (position: number, count: number): Buffer =>
      this.#source.read(entriesAt + position * stride, count * stride);
    return new RowCursor(this, { from, to, stride, read, inMemory: this.memoryBytes > 0 });
  }

  /** Undefined where the whole body is bisected. */
  #tableFor(prefix: number): KeyTable | undefined {
    if (this.count <= UNTABLED_MAX || this.keyBytes < 3) return undefined;
    let table = this.#tables[prefix];
    if (!table) this.#tables[prefix] = table = this.#makeTable(prefix);
    return table;
  }

  /**
   * Where the keys of a prefix start by their first one or two bytes, which are as good as random.
   */
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
        // Out of order only where the body is damaged: such keys are not found.
        while (next <= digit) starts[next++] = position;
        deleted |= bytes[at + flagsAt] as number;
      }
    }
    return { shift, starts, namesDeleted: (deleted & 0x80) !== 0 };
  }

  /** The entry of a row; throws `BAD_INDEX` as {@link entryAt} does. */
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
      // Last: looking up the name may read over `bytes`.
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

  /** Whether the row that begins at a place of these bytes is a deleted one. */
  deletedOf(bytes: Uint8Array, at: number): boolean {
    return ((bytes[at + this.keyBytes + this.#deletedAt] as number) & 0x80) !== 0;
  }

  /** The length that {@link decode} says. */
  originalLengthOf(bytes: Buffer, at: number): number {
    const entryAt = at + this.keyBytes;
    if (this.version === 1) return Math.max(0, bytes.readUInt32BE(entryAt + 16) - OVERHEAD_V1);
    const high = this.#layout.entryBytes > 18 ? (bytes[entryAt + 18] as number) >> 4 : 0;
    return bytes.readUIntBE(entryAt + 8, 3) + high * 0x1000000;
  }

  /** The pack that {@link decode} names; throws `BAD_INDEX`. */
  packOf(bytes: Buffer, at: number): string {
    const entryAt = at + this.keyBytes;
    if (this.version === 1)
      return this.#name(bytes.readUInt32BE(entryAt + 8), bytes.readUInt8(entryAt + 7));
    const high = this.#layout.entryBytes > 17 ? (bytes[entryAt + 17] as number) : 0;
    return this.packAt(bytes.readUInt16BE(entryAt + 14) + high * 65_536);
  }

  /** The length in its pack that {@link decode} says. */
  packedLengthOf(bytes: Buffer, at: number): number {
    const entryAt = at + this.keyBytes;
    if (this.version === 1) return bytes.readUInt32BE(entryAt + 16);
    const high = this.#layout.entryBytes > 18 ? (bytes[entryAt + 18] as number) & 15 : 0;
    return bytes.readUIntBE(entryAt + 11, 3) + high * 0x1000000;
  }

  /**
   * The fields of a version 2 row that mean something in its own body only; `at` is behind the key.
   */
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

  /** The pack's blob ID; throws `BAD_INDEX`. */
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

  /** Whether any entry may be of one of these packs. Version 1 has no table of packs: each may. */
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

/** Keys one after the other, of which those count that `order[from]` to `order[to - 1]` name. */
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
