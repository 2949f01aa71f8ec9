import { isUtf8 } from 'node:buffer';

/** Joins a directory and a name. Either may be bytes that are not UTF-8. */
export function joinPath(
  directory: string | Uint8Array,
  name: string | Uint8Array,
): string | Uint8Array {
  if (typeof directory === 'string' && typeof name === 'string') {
    return directory.endsWith('/') ? directory + name : `${directory}/${name}`;
  }
  const parts = [directory, '/', name].map((part) => Buffer.from(part as string));
  return Uint8Array.from(Buffer.concat(parts));
}

/** Escape sequences that {@link bytesOfName} decodes to a byte. */
const ESCAPED = /\\x([0-9a-f]{2})/g;
const BACKSLASH = String.raw`\x5c`;

/**
 * A unique text for a file name. If the name is not UTF-8, `\xff` stands for a byte. A backslash
 * that looks like the start of such an escape is itself escaped.
 */
export function textOfName(bytes: Uint8Array): string {
  const name = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  if (isUtf8(name)) return name.toString().replaceAll(ESCAPED, `${BACKSLASH}x$1`);
  return Array.from(name, (byte) => {
    const char = String.fromCharCode(byte);
    return byte < 0x80 && char !== '\\' ? char : `\\x${byte.toString(16).padStart(2, '0')}`;
  }).join('');
}

/** The bytes of a {@link textOfName}, or of a path of such names. */
export function bytesOfName(text: string): Buffer {
  const parts = text.split(ESCAPED);
  // Every second part is two hex digits.
  return Buffer.concat(parts.map((part, at) => Buffer.from(part, at % 2 === 1 ? 'hex' : 'utf8')));
}
