import { CodedError } from '../../base/index.ts';

const STREAM_IDS = ['S2sTwO', 'sNaPpY'];
/** Largest block of the S2 framing format (klauspost/compress, s2/decode.go). */
const BLOCK_BYTES_MAX = 4 << 20;

const CRC32C = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc >>> 0;
});

function maskedCrc(data: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of data) crc = (CRC32C[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  crc = ~crc >>> 0;
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

function bad(what: string): CodedError {
  return new CodedError('BAD_COMPRESSION', `S2 stream is damaged: ${what}`);
}

/** Decodes an S2 or Snappy framed stream of at most `lengthMax` bytes; throws `BAD_COMPRESSION`. */
export function decodeS2Stream(stream: Uint8Array, lengthMax: number): Uint8Array {
  const parts: Uint8Array[] = [];
  let total = 0;
  for (let at = 0; at < stream.length;) {
    if (at + 4 > stream.length) throw bad('chunk header cut short');
    const type = stream[at] as number;
    const length =
      (stream[at + 1] as number) |
      ((stream[at + 2] as number) << 8) |
      ((stream[at + 3] as number) << 16);
    const body = stream.subarray(at + 4, at + 4 + length);
    if (body.length < length) throw bad('chunk cut short');
    at += 4 + length;
    if (type === 0x00 || type === 0x01) {
      const part = decodeChunk(type, body, lengthMax - total);
      total += part.length;
      parts.push(part);
    } else if (type === 0xff) {
      const id = String.fromCharCode(...body.subarray(0, 16));
      if (!STREAM_IDS.includes(id)) throw bad('unknown stream identifier');
    } else if (type < 0x80) {
      throw bad(`unknown chunk type ${type}`);
    }
  }
  return parts.length === 1 ? (parts[0] as Uint8Array) : Buffer.concat(parts, total);
}

function decodeChunk(type: number, body: Uint8Array, room: number): Uint8Array {
  if (body.length < 4) throw bad('checksum cut short');
  const crc = new DataView(body.buffer, body.byteOffset, 4).getUint32(0, true);
  const data = type === 0x00 ? decodeS2Block(body.subarray(4), room) : body.subarray(4);
  if (data.length > room) throw bad('longer than its content');
  if (maskedCrc(data) !== crc) throw bad('checksum mismatch');
  return data;
}

/** Decodes one block: a uvarint length, then literals and copies. */
export function decodeS2Block(block: Uint8Array, lengthMax: number): Uint8Array {
  const header = blockLength(block);
  if (header.length > Math.min(lengthMax, BLOCK_BYTES_MAX)) throw bad('block too long');
  const out = new Uint8Array(header.length);
  let at = header.next;
  let to = 0;
  let offset = 0;
  const byte = (): number => {
    const value = block[at++];
    if (value === undefined) throw bad('block cut short');
    return value;
  };
  const number = (bytes: number): number => {
    let value = 0;
    for (let i = 0; i < bytes; i++) value += byte() * 2 ** (8 * i);
    return value;
  };
  while (at < block.length) {
    const tag = byte();
    let length: number;
    switch (tag & 3) {
      case 0: {
        const n = tag >> 2;
        length = (n < 60 ? n : number(n - 59)) + 1;
        if (at + length > block.length || to + length > out.length) throw bad('literal too long');
        out.set(block.subarray(at, at + length), to);
        at += length;
        to += length;
        continue;
      }
      case 1: {
        const distance = ((tag & 0xe0) << 3) | byte();
        const code = (tag >> 2) & 7;
        if (distance === 0) {
          length = repeatLength(code, number);
        } else {
          offset = distance;
          length = code + 4;
        }
        break;
      }
      case 2:
        offset = number(2);
        length = (tag >> 2) + 1;
        break;
      default:
        offset = number(4);
        length = (tag >> 2) + 1;
    }
    if (offset === 0 || offset > to || to + length > out.length) throw bad('copy out of range');
    // Source and destination may overlap: the bytes repeat.
    if (offset >= length) out.copyWithin(to, to - offset, to - offset + length);
    else for (let i = 0; i < length; i++) out[to + i] = out[to + i - offset] as number;
    to += length;
  }
  if (to !== out.length) throw bad('block shorter than it says');
  return out;
}

function repeatLength(code: number, number: (bytes: number) => number): number {
  if (code <= 4) return code + 4;
  if (code === 5) return number(1) + 8;
  return code === 6 ? number(2) + 260 : number(3) + 65_540;
}

function blockLength(block: Uint8Array): { length: number; next: number } {
  let length = 0;
  for (let at = 0; at < 5; at++) {
    const byte = block[at];
    if (byte === undefined) break;
    length += (byte & 0x7f) * 2 ** (7 * at);
    if (byte < 0x80) return { length, next: at + 1 };
  }
  throw bad('block length cut short');
}
