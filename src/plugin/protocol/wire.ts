import {
  CodedError,
  define,
  lookup,
  protobufFields,
  type ProtobufValue,
} from '../../base/index.ts';

/**
 * Protobuf messages (proto3) by a table of their fields. Velero's plugins and go-plugin use only a
 * dozen small messages, and a library would take more memory than the rest of a plugin.
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
const LENGTH = 2;

const malformed = (why: string): CodedError =>
  new CodedError('BAD_MESSAGE', `the message is not valid protobuf: ${why}`);

export const encode = (message: Message, object: Readonly<Decoded>): Buffer =>
  Buffer.concat(encodeParts(message, object));

/** Like `encode`, in parts. Byte fields are not copied: they stay the caller's memory. */
export function encodeParts(message: Message, object: Readonly<Decoded>): Buffer[] {
  const parts: Buffer[] = [];
  for (const [number, field] of Object.entries(message)) {
    const value = lookup(object, field.name);
    if (value === undefined || value === null) continue;
    const values = field.isList === true ? (value as unknown[]) : [value];
    for (const each of values) {
      // List elements are always sent. proto3 omits other fields that are zero.
      if (field.isList !== true && isZero(each)) continue;
      parts.push(...encodeField(Number(number), field, each));
    }
  }
  return parts;
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
 * Ignores unknown fields, because a newer host may send more. An absent field is zero, `''` or an
 * empty list; an absent message is undefined. Byte fields are views of `bytes`. Throws
 * `BAD_MESSAGE`.
 */
export function decode(message: Message, bytes: Buffer): Decoded {
  const object: Decoded = {};
  for (const { name, type, isList } of Object.values(message)) {
    if (isList === true) define(object, name, []);
    else if (typeof type === 'string') define(object, name, zeroOf(type));
  }
  for (const { number, value } of protobufFields(bytes, malformed)) {
    const field = message[number];
    if (!field) continue;
    const decoded = valueOf(field, value);
    if (field.isList === true) (lookup(object, field.name) as unknown[]).push(decoded);
    else define(object, field.name, decoded);
  }
  return object;
}

function zeroOf(type: Scalar): unknown {
  if (type === 'string') return '';
  if (type === 'bytes') return Buffer.alloc(0);
  return type === 'bool' ? false : 0;
}

function valueOf({ name, type }: Field, value: ProtobufValue): unknown {
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

function numberIn(value: ProtobufValue, name: string): bigint {
  if (typeof value !== 'bigint') throw malformed(`${name} is not a number`);
  return value;
}

function bytesIn(value: ProtobufValue, name: string): Buffer {
  if (typeof value === 'bigint') throw malformed(`${name} is a number`);
  return value;
}
