import { CodedError } from '../../base/index.ts';

/**
 * Messages in protobuf (proto3), by a table of their fields: what Velero's plugins and go-plugin say to each other is a dozen small
 * messages, and a library for it costs more memory than the rest of a plugin.
 */
export type Scalar = 'string' | 'bytes' | 'bool' | 'int32' | 'int64' | 'uint32';

export interface Field {
  readonly name: string;
  readonly type: Scalar | Message;
  readonly isList?: boolean;
}

export type Message = Readonly<Record<number, Field>>;

/** An int64 is a number here: counts of bytes and seconds, below 2^53. */
export type Decoded = Record<string, unknown>;

const VARINT = 0;
const FIXED_64 = 1;
const LENGTH = 2;
const FIXED_32 = 5;
const VARINT_BYTES_MAX = 10;

const malformed = (why: string): CodedError =>
  new CodedError('BAD_MESSAGE', `the message is not valid protobuf: ${why}`);

export function encode(message: Message, object: Readonly<Decoded>): Buffer {
  const parts: Buffer[] = [];
  for (const [number, field] of Object.entries(message)) {
    const value = object[field.name];
    if (value === undefined || value === null) continue;
    const values = field.isList === true ? (value as unknown[]) : [value];
    for (const each of values) {
      // Of a list each counts; alone, proto3 leaves out what is zero.
      if (field.isList !== true && isZero(each)) continue;
      parts.push(...encodeField(Number(number), field, each));
    }
  }
  return Buffer.concat(parts);
}

const isZero = (value: unknown): boolean =>
  value === '' ||
  value === 0 ||
  value === false ||
  (value instanceof Uint8Array && value.length === 0);

function encodeField(number: number, { type }: Field, value: unknown): Buffer[] {
  switch (type) {
    case 'bool':
      return [varint(number * 8 + VARINT), varint(value === true ? 1 : 0)];
    case 'int32':
    case 'int64':
    case 'uint32':
      return [varint(number * 8 + VARINT), varint(value as number)];
    case 'string':
      return withLength(number, Buffer.from(value as string, 'utf8'));
    case 'bytes':
      return withLength(number, value as Uint8Array);
    default:
      return withLength(number, encode(type, value as Decoded));
  }
}

const withLength = (number: number, bytes: Uint8Array): Buffer[] => [
  varint(number * 8 + LENGTH),
  varint(bytes.length),
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length),
];

/** Negative numbers take ten bytes, as two's complement of 64 bits. */
function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(Math.trunc(value)));
  while (rest >= 0x80n) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

/**
 * Fields that the table does not have are left out: a newer host may send more. What is absent is zero, `''` or an empty list;
 * an absent message is undefined. Byte fields are views of `bytes`. Throws `BAD_MESSAGE`.
 */
export function decode(message: Message, bytes: Buffer): Decoded {
  const object: Decoded = {};
  for (const { name, type, isList } of Object.values(message)) {
    if (isList === true) object[name] = [];
    else if (typeof type === 'string') object[name] = zeroOf(type);
  }
  const reader = new Reader(bytes);
  while (!reader.isAtEnd) {
    const { number, value } = reader.next();
    const field = message[number];
    if (!field) continue;
    const decoded = valueOf(field, value);
    if (field.isList === true) (object[field.name] as unknown[]).push(decoded);
    else object[field.name] = decoded;
  }
  return object;
}

function zeroOf(type: Scalar): unknown {
  if (type === 'string') return '';
  if (type === 'bytes') return Buffer.alloc(0);
  return type === 'bool' ? false : 0;
}

type Value = bigint | Buffer;

function valueOf({ name, type }: Field, value: Value): unknown {
  switch (type) {
    case 'bool':
      return numberIn(value, name) !== 0n;
    case 'int32':
      return Number(BigInt.asIntN(32, numberIn(value, name)));
    case 'int64':
      return Number(BigInt.asIntN(64, numberIn(value, name)));
    case 'uint32':
      return Number(BigInt.asUintN(32, numberIn(value, name)));
    case 'string':
      return bytesIn(value, name).toString('utf8');
    case 'bytes':
      return bytesIn(value, name);
    default:
      return decode(type, bytesIn(value, name));
  }
}

function numberIn(value: Value, name: string): bigint {
  if (typeof value !== 'bigint') throw malformed(`${name} is not a number`);
  return value;
}

function bytesIn(value: Value, name: string): Buffer {
  if (typeof value === 'bigint') throw malformed(`${name} is a number`);
  return value;
}

/** Fields of a message, one after the other. Nothing is read past its end. */
class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length;
  }

  next(): { number: number; value: Value } {
    const tag = this.#varint();
    const number = Number(tag >> 3n);
    switch (Number(tag & 7n)) {
      case VARINT:
        return { number, value: this.#varint() };
      case FIXED_64:
        return { number, value: this.#take(8) };
      case LENGTH:
        return { number, value: this.#take(Number(this.#varint())) };
      case FIXED_32:
        return { number, value: this.#take(4) };
      default:
        throw malformed('a field of an unknown type');
    }
  }

  #take(length: number): Buffer {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw malformed('it ends in the middle of a field');
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }

  #varint(): bigint {
    let value = 0n;
    for (let i = 0; i < VARINT_BYTES_MAX; i++) {
      const byte = this.#bytes[this.#at++];
      if (byte === undefined) throw malformed('it ends in the middle of a number');
      value |= BigInt(byte & 0x7f) << BigInt(7 * i);
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    throw malformed('a number that is too long');
  }
}
