import { lookup } from '../base/index.ts';
const SHORT: Readonly<Record<string, string>> = {
  '\u0007': '\\a',
  '\b': '\\b',
  '\f': '\\f',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
  '\v': '\\v',
};
const PRINTED = /^[\p{L}\p{M}\p{N}\p{P}\p{S} ]$/u;

const hex = (code: number, digits: number): string => code.toString(16).padStart(digits, '0');

function escaped(char: string, quote: string): string {
  if (char === quote || char === '\\') return `\\${char}`;
  const short = lookup(SHORT, char);
  if (short !== undefined) return short;
  const code = char.codePointAt(0) ?? 0;
  if (code < 0x20 || code === 0x7f) return `\\x${hex(code, 2)}`;
  if (PRINTED.test(char)) return char;
  return code < 0x1_00_00 ? `\\u${hex(code, 4)}` : `\\U${hex(code, 8)}`;
}

const quotedIn = (text: string, quote: string): string =>
  quote + Array.from(text, (char) => escaped(char, quote)).join('') + quote;

/** A string in the form of Go's `%q`. */
export const goQuoted = (text: string): string => quotedIn(text, '"');

/** A character in the form of Go's `%q`. */
export const goQuotedChar = (char: string): string => quotedIn(char, "'");

/**
 * A string in the form of errors of Go's package `time`: bytes beyond ASCII are escaped one by one.
 */
export const goTimeQuoted = (text: string): string =>
  `"${Array.from(text, (char) => {
    if (char === '"' || char === '\\') return `\\${char}`;
    const isPlain = char >= ' ' && char < '\u0080';
    return isPlain ? char : [...Buffer.from(char)].map((byte) => `\\x${hex(byte, 2)}`).join('');
  }).join('')}"`;
