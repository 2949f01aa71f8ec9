/** Castagnoli's polynomial, reflected. */
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f6_3b78 : crc >>> 1;
  return crc;
});

/** As in Linux: neither the seed nor the result is inverted. */
export function crc32c(seed: number, bytes: Uint8Array): number {
  let crc = seed;
  for (const byte of bytes) crc = (TABLE[(crc ^ byte) & 0xff] as number) ^ (crc >>> 8);
  return crc >>> 0;
}

/** The checksum of a number of four bytes. */
export function crc32cOf(seed: number, value: number, isBigEndian = false): number {
  const bytes = Buffer.allocUnsafe(4);
  if (isBigEndian) bytes.writeUInt32BE(value >>> 0);
  else bytes.writeUInt32LE(value >>> 0);
  return crc32c(seed, bytes);
}
