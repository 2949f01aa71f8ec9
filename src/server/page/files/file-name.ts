/** Of names that file systems take; with room for what a browser adds. In bytes. */
const NAME_BYTES_MAX = 200;
/**
 * What no name of a download has: control characters, marks that nobody sees or that turn the direction of the text, what parts paths, and what
 * Windows refuses.
 */
const UNFIT =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0\ufe00-\ufe0f\\/:*?"<>|]/gu;
/** RFC 8187, section 3.2.1: attr-char. All others are escaped. */
const NOT_ATTR_CHAR = /[^A-Za-z0-9!#$&+.^_`|~-]/g;
const ENCODER = new TextEncoder();

/**
 * A harmless name under which something is downloaded, with an ending that is kept: no path, no hidden file, nothing that shows another ending
 * than it has.
 */
export function downloadName(name: string, ending = ''): string {
  const plain = name
    .toWellFormed()
    .normalize('NFC')
    .replaceAll(UNFIT, '_')
    // Hidden on one system, cut on another.
    .replace(/^[. ]+/, '_')
    .replace(/[. ]+$/, '_');
  const fit = cutToBytes(plain, NAME_BYTES_MAX - ending.length);
  return `${fit === '' ? 'file' : fit}${ending}`;
}

/** The header Content-Disposition for a name of {@link downloadName}: RFC 6266, and RFC 8187 beside a name for old clients. */
export function contentDisposition(name: string): string {
  const ascii = name.replaceAll(/[^\w.\- ]/g, '_');
  const start = `attachment; filename="${ascii}"`;
  return ascii === name ? start : `${start}; filename*=UTF-8''${extValue(name)}`;
}

function extValue(name: string): string {
  return Array.from(ENCODER.encode(name), (byte) => {
    const char = String.fromCharCode(byte);
    const isPlain = byte < 0x80 && char.search(NOT_ATTR_CHAR) < 0;
    return isPlain ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }).join('');
}

/** Whole characters only. */
function cutToBytes(text: string, bytesMax: number): string {
  if (ENCODER.encode(text).length <= bytesMax) return text;
  let bytes = 0;
  let cut = '';
  for (const char of text) {
    bytes += ENCODER.encode(char).length;
    if (bytes > bytesMax) break;
    cut += char;
  }
  return cut;
}
