import { CodedError } from '../../base/index.ts';

/** Bytes of an index body, in memory or an open file. Reads are synchronous, like lookups. */
export interface ByteSource {
  readonly lengthBytes: number;
  /** All bytes, if they are in memory. */
  readonly whole: Buffer | undefined;
  /** The result is valid until the next call. */
  read(offset: number, length: number): Buffer;
  close(): void;
}

const ENTRY_BYTES_V1 = 20;
export const PACK_BYTES_V2 = 5;
export const FORMAT_BYTES_V2 = 6;

/** Positions of the tables in an index body. */
export interface IndexLayout {
  readonly version: 1 | 2;
  readonly keyBytes: number;
  readonly entryBytes: number;
  readonly count: number;
  readonly entriesAt: number;
  readonly packCount: number;
  readonly packsAt: number;
  readonly formatCount: number;
  readonly formatsAt: number;
  readonly baseTimestamp: number;
}

export function badIndex(what: string): CodedError {
  return new CodedError('BAD_INDEX', `not a valid index: ${what}`);
}

/** Reads the header and checks the tables against the length. Throws `BAD_INDEX`. */
export function parseLayout(source: ByteSource): IndexLayout {
  if (source.lengthBytes < 8) throw badIndex('header cut short');
  const header = Buffer.from(source.read(0, Math.min(17, source.lengthBytes)));
  const version = header.readUInt8(0);
  const keyBytes = header.readUInt8(1);
  const entryBytes = header.readUInt16BE(2);
  const count = header.readUInt32BE(4);
  const layout = version === 1 ? layoutV1(keyBytes, entryBytes, count) : undefined;
  const result = layout ?? layoutV2(header, version);
  if (count > 0 && (keyBytes < 2 || keyBytes > 65)) throw badIndex(`keys of ${keyBytes} bytes`);
  const end = result.formatsAt + result.formatCount * FORMAT_BYTES_V2;
  if (end > source.lengthBytes) throw badIndex('tables cut short');
  return result;
}

function layoutV1(keyBytes: number, entryBytes: number, count: number): IndexLayout {
  if (entryBytes !== ENTRY_BYTES_V1) throw badIndex(`entries of ${entryBytes} bytes`);
  const end = 8 + count * (keyBytes + entryBytes);
  return {
    version: 1,
    keyBytes,
    entryBytes,
    count,
    entriesAt: 8,
    packCount: 0,
    packsAt: end,
    formatCount: 0,
    formatsAt: end,
    baseTimestamp: 0,
  };
}

function layoutV2(header: Buffer, version: number): IndexLayout {
  if (version !== 2) throw badIndex(`version ${version}`);
  if (header.length < 17) throw badIndex('header cut short');
  const keyBytes = header.readUInt8(1);
  const entryBytes = header.readUInt16BE(2);
  if (entryBytes < 16 || entryBytes > 19) throw badIndex(`entries of ${entryBytes} bytes`);
  const count = header.readUInt32BE(4);
  const packCount = header.readUInt32BE(8);
  const packsAt = 17 + count * (keyBytes + entryBytes);
  return {
    version: 2,
    keyBytes,
    entryBytes,
    count,
    entriesAt: 17,
    packCount,
    packsAt,
    formatCount: header.readUInt8(12),
    formatsAt: packsAt + packCount * PACK_BYTES_V2,
    baseTimestamp: header.readUInt32BE(13),
  };
}
