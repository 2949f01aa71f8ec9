import { EXTRA_FIELD } from './directory-text.ts';

/**
 * Reads the files of a directory stream byte by byte. Creating a string for each entry would be
 * most of a comparison's cost.
 */

const QUOTE = 34;
const BACKSLASH = 92;
const SLASH = 47;
const ZERO = 48;
const LETTER_A = 97;
const FIRST_ASCII = 32;
const LAST_ASCII = 126;
const LETTER_I = 73;
const LETTER_Z = 90;
/** Maximum digits of a safe integer. */
const DIGITS_MAX = 15;
const DAY_SECONDS = 86_400;

const bytesOf = (text: string): Uint8Array => Buffer.from(text, 'latin1');

const NAME = bytesOf('{"name":"');
const TYPE = bytesOf(',"type":"');
const MODE = bytesOf('"mode":"0');
const SIZE = bytesOf('"size":');
const TIME = bytesOf('"mtime":"');
const OWNER = bytesOf('"uid":');
const GROUP = bytesOf('"gid":');
const OBJECT = bytesOf('"obj":"');
const EXTRA = bytesOf(EXTRA_FIELD);
const OPEN = 123;
const CLOSE = 125;

/** Reads files and links of a stream. The fields are of the entry last read by {@link next}. */
export class StreamCursor {
  /** Start of the next entry. */
  at: number;
  /** Start and end of the name. */
  nameAt = 0;
  nameEnd = 0;
  /** Character code of the type. */
  type = 0;
  /** Permission bits. Entries with setuid, setgid or sticky are rejected. */
  mode = 0;
  sizeBytes = 0;
  seconds = 0;
  nanoseconds = 0;
  uid = 0;
  gid = 0;
  /** Start and end of the extra attributes. Equal if there are none. */
  extraAt = 0;
  extraEnd = 0;
  readonly #bytes: Buffer;
  readonly #keys: Buffer;
  readonly #keyBytes: number;

  /** `keys` receives the objects' index keys, without gaps. */
  constructor(bytes: Buffer, at: number, keys: Buffer, keyBytes: number) {
    this.#bytes = bytes;
    this.at = at;
    this.#keys = keys;
    this.#keyBytes = keyBytes;
  }

  /**
   * Reads an entry, and its object's key into `keys`. Returns false if its form differs from
   * Kopia's and ours, or if it has anything unusual. Then ignore all fields.
   */
  next(keyAt: number): boolean {
    if (!this.#take(NAME) || !this.#readName() || !this.#take(TYPE)) return false;
    this.type = this.#bytes[this.at++] as number;
    if (!this.#isText('",')) return false;
    this.mode = this.#take(MODE) ? this.#readOctal() : 0;
    this.sizeBytes = this.#take(SIZE) ? this.#readField() : 0;
    if (this.#take(TIME)) {
      if (!this.#readTime()) return false;
    } else {
      this.seconds = this.nanoseconds = 0;
    }
    this.uid = this.#take(OWNER) ? this.#readField() : 0;
    this.gid = this.#take(GROUP) ? this.#readField() : 0;
    const numbers = this.mode + this.sizeBytes + this.uid + this.gid;
    return !Number.isNaN(numbers) && this.#take(OBJECT) && this.#readKey(keyAt);
  }

  /**
   * Calls `use` with the name and a zero byte after it, for system calls. Changes the stream
   * temporarily, because copying each name would be slow.
   */
  withName<T>(use: (name: Uint8Array) => T): T {
    this.#bytes[this.nameEnd] = 0;
    try {
      return use(this.#bytes.subarray(this.nameAt, this.nameEnd + 1));
    } finally {
      this.#bytes[this.nameEnd] = QUOTE;
    }
  }

  /** Skips a byte after an entry. */
  skip(byte: number): boolean {
    if (this.#bytes[this.at] !== byte) return false;
    this.at++;
    return true;
  }

  #take(expected: Uint8Array): boolean {
    const { length } = expected;
    for (let i = 0; i < length; i++) {
      if (this.#bytes[this.at + i] !== expected[i]) return false;
    }
    this.at += length;
    return true;
  }

  #isText(expected: string): boolean {
    for (let i = 0; i < expected.length; i++) {
      if (this.#bytes[this.at + i] !== expected.charCodeAt(i)) return false;
    }
    this.at += expected.length;
    return true;
  }

  #readName(): boolean {
    this.nameAt = this.at;
    for (; ; this.at++) {
      const byte = this.#bytes[this.at];
      if (byte === QUOTE) break;
      const isPlain = byte !== undefined && byte >= FIRST_ASCII && byte <= LAST_ASCII;
      if (!isPlain || byte === BACKSLASH || byte === SLASH) return false;
    }
    this.nameEnd = this.at++;
    return this.nameEnd > this.nameAt;
  }

  /** NaN if there is no number, or if it has too many digits to be exact. */
  #readNumber(): number {
    const from = this.at;
    let value = 0;
    for (;;) {
      const digit = (this.#bytes[this.at] as number) - ZERO;
      if (!(digit >= 0 && digit <= 9)) break;
      value = value * 10 + digit;
      this.at++;
    }
    const digits = this.at - from;
    return digits === 0 || digits > DIGITS_MAX ? NaN : value;
  }

  /** Reads a number and the comma after it. */
  #readField(): number {
    const value = this.#readNumber();
    return this.#isText(',') ? value : NaN;
  }

  #readOctal(): number {
    let value = 0;
    for (let digits = 0; ; digits++) {
      const digit = (this.#bytes[this.at] as number) - ZERO;
      if (!(digit >= 0 && digit <= 7)) return digits > 0 && this.#isText('",') ? value : NaN;
      if (digits === 3) return NaN;
      value = value * 8 + digit;
      this.at++;
    }
  }

  /** `2006-01-02T15:04:05.999999999Z`, from 1970 on. */
  #readTime(): boolean {
    const year = this.#readDigits(4, '-');
    const month = this.#readDigits(2, '-');
    const day = this.#readDigits(2, 'T');
    const hour = this.#readDigits(2, ':');
    const minute = this.#readDigits(2, ':');
    const second = this.#readDigits(2, '');
    let nanoseconds = 0;
    if (this.#isText('.')) {
      const from = this.at;
      const fraction = this.#readNumber();
      const digits = this.at - from;
      nanoseconds = digits <= 9 ? fraction * 10 ** (9 - digits) : NaN;
    }
    const days = daysSince1970(year, month, day);
    this.seconds = days * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    this.nanoseconds = nanoseconds;
    return year >= 1970 && !Number.isNaN(this.seconds + nanoseconds) && this.#isText('Z",');
  }

  #readDigits(count: number, behind: string): number {
    let value = 0;
    for (let i = 0; i < count; i++) {
      const digit = (this.#bytes[this.at++] as number) - ZERO;
      if (!(digit >= 0 && digit <= 9)) return NaN;
      value = value * 10 + digit;
    }
    return this.#isText(behind) ? value : NaN;
  }

  /** The object's index key: a prefix byte and the hash. */
  #readKey(keyAt: number): boolean {
    const bytes = this.#bytes;
    while (bytes[this.at] === LETTER_I || bytes[this.at] === LETTER_Z) this.at++;
    const isPrefix = (bytes[this.at] as number) > 102;
    this.#keys[keyAt] = isPrefix ? (bytes[this.at++] as number) : 0;
    for (let i = 1; i < this.#keyBytes; i++) {
      const high = hexDigit(bytes[this.at++] as number);
      const low = hexDigit(bytes[this.at++] as number);
      if (!(high >= 0 && low >= 0)) return false;
      this.#keys[keyAt + i] = high * 16 + low;
    }
    return this.#isText('"') && this.#readExtra() && this.#isText('}');
  }

  /** Longshore's JSON has braces only around objects. */
  #readExtra(): boolean {
    this.extraAt = this.extraEnd = this.at;
    if (!this.#take(EXTRA)) return true;
    this.extraAt = this.at;
    if (this.#bytes[this.at] !== OPEN) return false;
    for (let depth = 0; ;) {
      const byte = this.#bytes[this.at++];
      if (byte === undefined) return false;
      if (byte === OPEN) depth++;
      if (byte === CLOSE && --depth === 0) break;
    }
    this.extraEnd = this.at;
    return true;
  }
}

/** -1 if it is not a lower-case hex digit. */
function hexDigit(byte: number): number {
  if (byte >= ZERO && byte <= ZERO + 9) return byte - ZERO;
  return byte >= LETTER_A && byte <= LETTER_A + 5 ? byte - LETTER_A + 10 : -1;
}

/** Gregorian calendar, with years that start in March, so that leap days come last. */
function daysSince1970(year: number, month: number, day: number): number {
  const y = month <= 2 ? year - 1 : year;
  const dayOfYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1;
  const leapDays = Math.floor(y / 4) - Math.floor(y / 100) + Math.floor(y / 400);
  return y * 365 + leapDays + dayOfYear - 719_468;
}
