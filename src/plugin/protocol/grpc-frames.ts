import { GrpcCode, GrpcError } from './grpc-status.ts';

/**
 * gRPC messages in HTTP/2 (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), for
 * client and server.
 */
export const CONTENT_TYPE = 'application/grpc';
/** Prefix of each message: a flag for compression, and the length. */
export const PREFIX_BYTES = 5;

export function framed(message: Buffer): Buffer {
  return Buffer.concat([prefixOf(message.length), message]);
}

export function prefixOf(length: number): Buffer {
  const prefix = Buffer.alloc(PREFIX_BYTES);
  prefix.writeUInt32BE(length, 1);
  return prefix;
}

/** Length of the message after this prefix. Throws {@link GrpcError} if unreadable. */
export function lengthIn(
  prefix: Buffer,
  encoding: string | string[] | undefined,
  bytesMax: number,
): number {
  if (prefix[0] !== 0) {
    const text = `messages compressed with ${String(encoding ?? 'nothing named')} are not read here`;
    throw new GrpcError(GrpcCode.unimplemented, text);
  }
  const length = prefix.readUInt32BE(1);
  if (length > bytesMax) {
    const text = `a message of ${length} bytes is larger than ${bytesMax}`;
    throw new GrpcError(GrpcCode.resourceExhausted, text);
  }
  return length;
}

/** Yields messages in order. Throws {@link GrpcError} for a truncated or unreadable message. */
export async function* messagesIn(
  parts: AsyncIterable<Buffer>,
  encoding: () => string | string[] | undefined,
  bytesMax: number,
): AsyncGenerator<Buffer> {
  let pending: Buffer[] = [];
  let have = 0;
  let need = PREFIX_BYTES;
  for await (const part of parts) {
    pending.push(part);
    have += part.length;
    if (have < need) continue;
    let bytes = Buffer.concat(pending);
    while (bytes.length >= PREFIX_BYTES) {
      need = PREFIX_BYTES + lengthIn(bytes, encoding(), bytesMax);
      if (bytes.length < need) break;
      yield bytes.subarray(PREFIX_BYTES, need);
      bytes = bytes.subarray(need);
      need = PREFIX_BYTES;
    }
    pending = [bytes];
    have = bytes.length;
  }
  if (have > 0) throw new GrpcError(GrpcCode.internal, 'a message was cut off');
}

/** Encodes all UTF-8 bytes except printable ASCII, and the percent sign. */
export const percentEncoded = (text: string): string =>
  Array.from(Buffer.from(text, 'utf8'), (byte) =>
    byte >= 0x20 && byte <= 0x7e && byte !== 0x25
      ? String.fromCharCode(byte)
      : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`,
  ).join('');

/** Invalid percent encoding stays unchanged: a message is never refused for its form. */
export const percentDecoded = (text: string): string =>
  Buffer.from(
    text.replaceAll(/%([0-9a-f]{2})/gi, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    ),
    'latin1',
  ).toString('utf8');
