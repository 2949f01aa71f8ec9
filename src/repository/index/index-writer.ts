import { assert } from '../../base/index.ts';
import { keyBytesOf, writeContentKey } from './content-id.ts';
import { comparePrecedence, type IndexEntry } from './entry.ts';
import type { IndexBody, IndexRows } from './index-body.ts';

/** Limits of version 2 (repo/content/index/index_v2.go). */
const FORMATS_MAX = 255;
const PACKS_MAX = 1 << 24;
const OFFSET_MAX = 2 ** 30;
const LENGTH_MAX = 2 ** 28;
const HEADER_BYTES_V2 = 17;
const HEADER_BYTES_V1 = 8;
const ENTRY_BYTES_V1 = 20;

/** Numbers values by first appearance. */
class Numbering {
  readonly values: string[] = [];
  readonly #numbers = new Map<string, number>();

  numberOf(value: string): number {
    let number = this.#numbers.get(value);
    if (number === undefined) {
      number = this.values.push(value) - 1;
      this.#numbers.set(value, number);
    }
    return number;
  }
}

const formatKeyOf = (entry: IndexEntry): string =>
  `${entry.compressionHeaderId},${entry.formatVersion},${entry.encryptionKeyId}`;

/**
 * Sorts by key. If a content was stored twice at once, keeps the entry that takes precedence:
 * bodies hold each key once.
 */
export function sortEntries(entries: Iterable<IndexEntry>): IndexEntry[] {
  // Digits sort before prefix letters, and hex sorts like its bytes.
  const sorted = Array.from(entries).sort((a, b) =>
    a.contentId === b.contentId ? comparePrecedence(b, a) : a.contentId < b.contentId ? -1 : 1,
  );
  return sorted.filter(({ contentId }, i) => contentId !== sorted[i - 1]?.contentId);
}

/**
 * An index body of this version. `entries` are sorted by {@link sortEntries}, not empty, and
 * iterated several times, so they need not be in memory.
 */
export function encodeIndex(version: number, entries: Iterable<IndexEntry>): Uint8Array {
  const tables = tablesOf(entries);
  assert(tables.count > 0, 'an empty index is never written');
  return version === 1 ? encodeV1(entries, tables) : encodeV2(entries, tables);
}

/** Statistics of a body's entries. */
interface Tables {
  readonly count: number;
  readonly keyBytes: number;
  readonly packs: Numbering;
  readonly formats: Numbering;
  /** The longest content in bytes, packed or original. */
  readonly longest: number;
}

function tablesOf(entries: Iterable<IndexEntry>): Tables {
  const packs = new Numbering();
  const formats = new Numbering();
  let [count, keyBytes, longest] = [0, 0, 0];
  for (const entry of entries) {
    if (count++ === 0) keyBytes = keyBytesOf(entry.contentId);
    packs.numberOf(entry.packBlobId);
    formats.numberOf(formatKeyOf(entry));
    longest = Math.max(longest, entry.originalLength, entry.packedLength);
  }
  return { count, keyBytes, packs, formats, longest };
}

function encodeV1(entries: Iterable<IndexEntry>, { count, keyBytes, packs }: Tables): Uint8Array {
  const stride = keyBytes + ENTRY_BYTES_V1;
  const namesAt = HEADER_BYTES_V1 + count * stride;
  const offsets = nameOffsets(packs.values, namesAt);
  const out = Buffer.alloc(namesAt + packs.values.join('').length);
  out.writeUInt8(1, 0);
  out.writeUInt8(keyBytes, 1);
  out.writeUInt16BE(ENTRY_BYTES_V1, 2);
  out.writeUInt32BE(count, 4);
  let at = HEADER_BYTES_V1;
  for (const entry of entries) {
    assert(entry.compressionHeaderId === 0, 'index version 1 has no compression');
    writeContentKey(entry.contentId, out, at);
    const rest = at + keyBytes;
    out.writeUIntBE(entry.timestampSeconds, rest, 6);
    out.writeUInt8(entry.formatVersion, rest + 6);
    out.writeUInt8(entry.packBlobId.length, rest + 7);
    out.writeUInt32BE(offsets[packs.numberOf(entry.packBlobId)] as number, rest + 8);
    out.writeUInt32BE(entry.packOffset + (entry.deleted ? 0x80000000 : 0), rest + 12);
    out.writeUInt32BE(entry.packedLength, rest + 16);
    at += stride;
  }
  out.write(packs.values.join(''), namesAt, 'latin1');
  return out;
}

function nameOffsets(names: readonly string[], start: number): number[] {
  let at = start;
  return names.map((name) => {
    const offset = at;
    at += name.length;
    return offset;
  });
}

function encodeV2(entries: Iterable<IndexEntry>, tables: Tables): Uint8Array {
  const encoder = new IndexV2Encoder(entryBytesFor(tables));
  const stride = tables.keyBytes + encoder.entryBytes;
  const rows = Buffer.allocUnsafeSlow(tables.count * stride);
  let at = 0;
  for (const entry of entries) {
    encoder.encode(entry, rows, at);
    at += stride;
  }
  return Buffer.concat([encoder.header(), rows, encoder.trailer()]);
}

/** The smallest entry size for all values. A later byte of the entry implies the earlier. */
function entryBytesFor({ packs, formats, longest }: Tables): number {
  if (longest >= 1 << 24) return 19;
  if (packs.values.length > 65_536) return 18;
  return formats.values.length > 1 ? 17 : 16;
}

/** Writes a version 2 body in pieces: entries in key order, then header and trailer. */
export class IndexV2Encoder {
  readonly entryBytes: number;
  readonly #packs = new Numbering();
  readonly #formats = new Numbering();
  /** Numbers in this body for the packs and formats of other bodies. */
  readonly #numbersOf = new Map<
    IndexBody,
    { packs: Map<number, number>; formats: Map<number, number> }
  >();
  #keyBytes = 0;
  #count = 0;

  constructor(entryBytes = 19) {
    this.entryBytes = entryBytes;
  }

  static readonly headerBytes = HEADER_BYTES_V2;

  /** Bytes of the entry's row. */
  rowBytes(entry: IndexEntry): number {
    return keyBytesOf(entry.contentId) + this.entryBytes;
  }

  encode(entry: IndexEntry, out: Buffer, offset: number): void {
    const keyBytes = keyBytesOf(entry.contentId);
    assert(this.#count === 0 || keyBytes === this.#keyBytes, 'keys of one index are equally long');
    assert(entry.packOffset < OFFSET_MAX, 'pack offset too large for the index');
    assert(entry.originalLength < LENGTH_MAX, 'content too long for the index');
    assert(entry.packedLength < LENGTH_MAX, 'content too long for the index');
    this.#keyBytes = keyBytes;
    this.#count++;
    const pack = this.#packs.numberOf(entry.packBlobId);
    const format = this.#formats.numberOf(formatKeyOf(entry));
    assert(pack < PACKS_MAX && format < FORMATS_MAX, 'too many packs or formats for one index');
    writeContentKey(entry.contentId, out, offset);
    const at = offset + keyBytes;
    out.writeUInt32BE(entry.timestampSeconds, at);
    out.writeUInt32BE(entry.packOffset + (entry.deleted ? 0x80000000 : 0), at + 4);
    out.writeUIntBE(entry.originalLength & 0xffffff, at + 8, 3);
    out.writeUIntBE(entry.packedLength & 0xffffff, at + 11, 3);
    out.writeUInt16BE(pack & 0xffff, at + 14);
    if (this.entryBytes > 16) out.writeUInt8(format, at + 16);
    if (this.entryBytes > 17) out.writeUInt8(pack >>> 16, at + 17);
    if (this.entryBytes > 18) {
      out.writeUInt8(((entry.originalLength >>> 24) << 4) | (entry.packedLength >>> 24), at + 18);
    }
  }

  /** Whether {@link copy} can take the row without decoding. */
  canCopy(row: IndexRows): boolean {
    return (
      this.entryBytes === 19 &&
      row.body.version === 2 &&
      (this.#count === 0 || row.keyBytes === this.#keyBytes)
    );
  }

  /** {@link encode} for a row of another body, without decoding it. */
  copy(row: IndexRows, out: Buffer, offset: number): void {
    const { body, bytes, keyBytes } = row;
    let numbers = this.#numbersOf.get(body);
    if (!numbers) this.#numbersOf.set(body, (numbers = { packs: new Map(), formats: new Map() }));
    const from = row.at + keyBytes;
    const { timestampSeconds, pack, formatNumber, high } = body.fieldsV2(bytes, from);
    let packNumber = numbers.packs.get(pack);
    if (packNumber === undefined) {
      packNumber = this.#packs.numberOf(body.packAt(pack));
      numbers.packs.set(pack, packNumber);
    }
    let format = numbers.formats.get(formatNumber);
    if (format === undefined) {
      const { headerId, version, keyId } = body.formatAt(formatNumber);
      format = this.#formats.numberOf(`${headerId},${version},${keyId}`);
      numbers.formats.set(formatNumber, format);
    }
    assert(packNumber < PACKS_MAX && format < FORMATS_MAX, 'too many packs or formats');
    this.#keyBytes = keyBytes;
    this.#count++;
    row.copyKey(out, offset);
    const at = offset + keyBytes;
    out.writeUInt32BE(timestampSeconds, at);
    // Offset, deletion bit and low bytes of the lengths do not depend on the body.
    bytes.copy(out, at + 4, from + 4, from + 14);
    out.writeUInt16BE(packNumber & 0xffff, at + 14);
    out[at + 16] = format;
    out[at + 17] = packNumber >>> 16;
    out[at + 18] = high;
  }

  header(): Buffer {
    const out = Buffer.alloc(HEADER_BYTES_V2);
    out.writeUInt8(2, 0);
    out.writeUInt8(this.#keyBytes, 1);
    out.writeUInt16BE(this.entryBytes, 2);
    out.writeUInt32BE(this.#count, 4);
    out.writeUInt32BE(this.#packs.values.length, 8);
    out.writeUInt8(this.#formats.values.length, 12);
    return out;
  }

  trailer(): Buffer {
    const packs = this.#packs.values;
    const formats = this.#formats.values;
    const tablesAt = HEADER_BYTES_V2 + this.#count * (this.#keyBytes + this.entryBytes);
    const namesAt = tablesAt + packs.length * 5 + formats.length * 6;
    const offsets = nameOffsets(packs, namesAt);
    const tables = Buffer.alloc(packs.length * 5 + formats.length * 6);
    packs.forEach((name, i) => {
      tables.writeUInt8(name.length, i * 5);
      tables.writeUInt32BE(offsets[i] as number, i * 5 + 1);
    });
    formats.forEach((format, i) => {
      const [headerId = 0, version = 0, keyId = 0] = format.split(',').map(Number);
      const at = packs.length * 5 + i * 6;
      tables.writeUInt32BE(headerId, at);
      tables.writeUInt8(version, at + 4);
      tables.writeUInt8(keyId, at + 5);
    });
    return Buffer.concat([tables, Buffer.from(packs.join(''), 'latin1')]);
  }
}
