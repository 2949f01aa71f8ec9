/** A number, or the bytes of any other type. */
export type ProtobufValue = bigint | Buffer;

export interface ProtobufField {
  readonly number: number;
  readonly value: ProtobufValue;
}

const VARINT = 0;
const FIXED_64 = 1;
const LENGTH = 2;
const FIXED_32 = 5;
const VARINT_BYTES_MAX = 10;

/**
 * The fields of a protobuf message in sequence, without a schema. Byte values share the message's
 * memory. Never reads past the end. Throws the error of `malformed`, which gets the reason
 * (https://protobuf.dev/programming-guides/encoding/).
 */
export function* protobufFields(
  bytes: Buffer,
  malformed: (why: string) => Error,
): Generator<ProtobufField> {
  let at = 0;
  const take = (length: number): Buffer => {
    const end = at + length;
    if (end > bytes.length) throw malformed('it ends in the middle of a field');
    const taken = bytes.subarray(at, end);
    at = end;
    return taken;
  };
  const varint = (): bigint => {
    let value = 0n;
    for (let i = 0; i < VARINT_BYTES_MAX; i++) {
      const byte = bytes[at++];
      if (byte === undefined) throw malformed('it ends in the middle of a number');
      value |= BigInt(byte & 0x7f) << BigInt(7 * i);
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    throw malformed('a number that is too long');
  };
  while (at < bytes.length) {
    const tag = varint();
    const number = Number(tag >> 3n);
    switch (Number(tag & 7n)) {
      case VARINT:
        yield { number, value: varint() };
        break;
      case FIXED_64:
        yield { number, value: take(8) };
        break;
      case LENGTH:
        yield { number, value: take(Number(varint())) };
        break;
      case FIXED_32:
        yield { number, value: take(4) };
        break;
      default:
        throw malformed('a field of an unknown type');
    }
  }
}
