/**
 * Reads JSON of one known form byte by byte. Creating strings and objects for millions of entries
 * would be most of the cost.
 */

const QUOTE = 34;
const COMMA = 44;
const ZERO = 48;
const BACKSLASH = 92;
const LETTER_A = 97;
const OPEN = 123;
const CLOSE = 125;
const FIRST_PRINTABLE = 32;
/** Maximum digits of a safe integer. */
const DIGITS_MAX = 15;

/** A cursor in JSON. Methods return false or NaN if the form differs from the expected one. */
export class JsonBytes {
  at = 0;
  readonly bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }

  /** Skips these bytes if they are next. Otherwise stays. */
  take(expected: Uint8Array): boolean {
    const { length } = expected;
    for (let i = 0; i < length; i++) {
      if (this.bytes[this.at + i] !== expected[i]) return false;
    }
    this.at += length;
    return true;
  }

  /** Skips the rest of a string and its quote. */
  skipString(): boolean {
    for (;;) {
      const byte = this.bytes[this.at++];
      if (byte === QUOTE) return true;
      if (byte === undefined || byte < FIRST_PRINTABLE) return false;
      if (byte === BACKSLASH) this.at++;
    }
  }

  /** Reads a number. NaN if there is none, or if it has too many digits to be exact. */
  number(): number {
    const from = this.at;
    let value = 0;
    for (;;) {
      const digit = (this.bytes[this.at] as number) - ZERO;
      if (!(digit >= 0 && digit <= 9)) break;
      value = value * 10 + digit;
      this.at++;
    }
    const digits = this.at - from;
    const isPadded = digits > 1 && this.bytes[from] === ZERO;
    return digits === 0 || digits > DIGITS_MAX || isPadded ? NaN : value;
  }

  /** Reads a number and the comma after it. */
  field(): number {
    const value = this.number();
    return this.bytes[this.at++] === COMMA ? value : NaN;
  }

  /** Skips an object with any content. */
  skipObject(): boolean {
    if (this.bytes[this.at] !== OPEN) return false;
    let depth = 0;
    for (;;) {
      const byte = this.bytes[this.at++];
      if (byte === undefined) return false;
      if (byte === QUOTE && !this.skipString()) return false;
      if (byte === OPEN) depth++;
      if (byte === CLOSE && --depth === 0) return true;
    }
  }

  /** Reads `count` bytes in lower-case hex. */
  hex(into: Uint8Array, offset: number, count: number): boolean {
    for (let i = 0; i < count; i++) {
      const high = hexDigit(this.bytes[this.at++] as number);
      const low = hexDigit(this.bytes[this.at++] as number);
      if (!(high >= 0 && low >= 0)) return false;
      into[offset + i] = high * 16 + low;
    }
    return true;
  }
}

/** -1 if it is not a lower-case hex digit. */
function hexDigit(byte: number): number {
  if (byte >= ZERO && byte <= ZERO + 9) return byte - ZERO;
  return byte >= LETTER_A && byte <= LETTER_A + 5 ? byte - LETTER_A + 10 : -1;
}
