import { isUtf8 } from 'node:buffer';

/** Joins a directory and a name where either may be bytes that are not UTF-8. */
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

/** Text that {@link bytesOfName} takes for a byte. */
const ESCAPED = /\\x([0-9a-f]{2})/g;
const BACKSLASH = String.raw`\x5c`;

/**
 * A text for a name on disk; no two names have the same. In a name that is not UTF-8, `\xff` stands
 * for a byte. A backslash that looks like the start of such a text is itself written as a byte.
 */
export function textOfName(bytes: Uint8Array): string {
  const name = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  if (isUtf8(name)) return name.toString().replaceAll(ESCAPED, `${BACKSLASH}x$1`);
  return Array.from(name, (byte) => {
    const char = String.fromCharCode(byte);
    return byte < 0x80 && char !== '\\' ? char : `\\x${byte.toString(16).padStart(2, '0')}`;
  }).join('');
}

/** The bytes of a {@link textOfName}, or of a path of them. */
export function bytesOfName(text: string): Buffer {
  const parts = text.split(ESCAPED);
  // Every other part is two digits.
  return Buffer.concat(parts.map((part, at) => Buffer.from(part, at % 2 === 1 ? 'hex' : 'utf8')));
}
