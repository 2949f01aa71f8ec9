/** A Buffer over the same memory, without a copy. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Total length in bytes. */
export const totalLength = (data: readonly Uint8Array[]): number =>
  data.reduce((sum, piece) => sum + piece.length, 0);

/**
 * Frees the memory of unused bytes at once. Garbage collection may be late, and freed memory is
 * likely still in the CPU cache. Does nothing if the bytes share their memory. With `slack`, the
 * caller states that the shared rest is unused too.
 */
export function giveBack(bytes: Uint8Array, { slack = false } = {}): void {
  const { buffer } = bytes;
  const isOwn =
    buffer.byteLength === bytes.length || (slack && buffer.byteLength > Buffer.poolSize);
  if (isOwn && buffer instanceof ArrayBuffer && !buffer.detached) buffer.transfer(0);
}

/**
 * The last `bytesMax` bytes of a UTF-8 text, starting at a line if possible. Returns the whole text
 * if it is shorter. Same memory.
 */
export function lastLinesOf(text: Uint8Array, bytesMax: number): Uint8Array {
  if (text.length <= bytesMax) return text;
  const start = text.length - bytesMax;
  if (bytesMax === 0 || text[start - 1] === NEWLINE) return text.subarray(start);
  const end = text.subarray(start);
  const newline = end.indexOf(NEWLINE);
  if (newline !== -1 && newline + 1 < end.length) return end.subarray(newline + 1);
  return end.subarray(end.findIndex((byte) => (byte & 0xc0) !== 0x80));
}

const NEWLINE = 0x0a;

/** Unsigned LEB128, like Go's binary.PutUvarint. */
export function encodeUvarint(value: number): Uint8Array {
  const out: number[] = [];
  let rest = value;
  while (rest >= 0x80) {
    out.push((rest % 0x80) | 0x80);
    rest = Math.floor(rest / 0x80);
  }
  out.push(rest);
  return Uint8Array.from(out);
}

/** Decodes a uvarint. Undefined if it is cut short or not a safe integer. */
export function decodeUvarint(
  bytes: Uint8Array,
  offset: number,
): { value: number; next: number } | undefined {
  let value = 0;
  let scale = 1;
  for (let at = offset; at < bytes.length && at < offset + 8; at++) {
    const byte = bytes[at] ?? 0;
    value += (byte & 0x7f) * scale;
    if (byte < 0x80) return Number.isSafeInteger(value) ? { value, next: at + 1 } : undefined;
    scale *= 0x80;
  }
  return undefined;
}

/** A size for users, in binary units: `1.5 GiB`. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return unit === 0 ? `${value} B` : `${value.toFixed(1)} ${units[unit] ?? ''}`;
}
