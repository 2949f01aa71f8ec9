import { asBuffer, CodedError, isCode, parseJsonLossless } from '../../base/index.ts';
import { type DirectoryEntry, parseEntry } from './directory.ts';
import { STREAM_START } from './directory-text.ts';

const START = Buffer.from(STREAM_START);
/**
 * The text after an entry: the start of the next entry, or the end of the list. As in
 * {@link DirectoryDecoder}, neither occurs within an entry.
 */
const NEXT = Buffer.from('},{"name":"');
const END = Buffer.from('}],"summary":');
/** Maximum size of an entry. Only a summary with many errors is long. */
const ENTRY_BYTES_MAX = 64 << 20;
/** Characters that every Go version writes unescaped in JSON. */
const PLAIN = /^[ !#-%'-;=?-[\]-~]+$/;

/** Whether entries of this name can be found by bytes. Other names have several JSON forms. */
export const isPlainName = (name: string): boolean => PLAIN.test(name);

/**
 * Searches the bytes of a directory for the entries of a name. Parses only these, because a
 * directory may have a million entries.
 */
export class DirectorySearch {
  readonly #needle: Buffer;
  #held: Buffer = Buffer.alloc(0);
  #isStarted = false;

  /** `name` satisfies {@link isPlainName}. `isWithin`: the stream's start was checked. */
  constructor(name: string, isWithin = false) {
    this.#needle = Buffer.from(`{"name":"${name}",`);
    this.#isStarted = isWithin;
  }

  /**
   * Entries completed by these bytes. Undefined if the stream does not start like Kopia's and ours,
   * so that it cannot be searched. Throws `BAD_DIRECTORY`.
   */
  push(bytes: Uint8Array): DirectoryEntry[] | undefined {
    const all = this.#held.length === 0 ? asBuffer(bytes) : Buffer.concat([this.#held, bytes]);
    if (!this.#isStarted && all.length >= START.length) {
      if (!all.subarray(0, START.length).equals(START)) return undefined;
      this.#isStarted = true;
    }
    const found: DirectoryEntry[] = [];
    let from = 0;
    for (let at = all.indexOf(this.#needle); at >= 0; at = all.indexOf(this.#needle, from)) {
      const end = endOf(all, at);
      if (end < 0) return this.#hold(all.subarray(at), found);
      found.push(entryIn(all.subarray(at, end)));
      from = end;
    }
    const rest = Math.max(from, all.length - Math.max(this.#needle.length, START.length));
    return this.#hold(all.subarray(rest), found);
  }

  /** Whether the stream could be searched. Throws `BAD_DIRECTORY` if it ends in a match. */
  finish(): boolean {
    const isCut = this.#held.subarray(0, this.#needle.length).equals(this.#needle);
    if (isCut) throw damaged('it ends within an entry');
    return this.#isStarted;
  }

  #hold(rest: Buffer, found: DirectoryEntry[]): DirectoryEntry[] {
    if (rest.length > ENTRY_BYTES_MAX) throw damaged('an entry is too long for its format');
    // Copy, so that a few bytes do not keep a whole content in memory.
    this.#held = Buffer.from(rest);
    return found;
  }
}

/**
 * The first entry that begins in this part of a stream, or undefined. The part is not the stream's
 * start. Throws `BAD_DIRECTORY`.
 */
export function firstEntryIn(bytes: Uint8Array): DirectoryEntry | undefined {
  const all = asBuffer(bytes);
  const before = all.indexOf(NEXT);
  const end = before < 0 ? -1 : endOf(all, before + NEXT.length);
  return end < 0 ? undefined : entryIn(all.subarray(before + 2, end));
}

/** Position after the entry, or -1 if its end has not arrived. */
function endOf(all: Buffer, at: number): number {
  const next = all.indexOf(NEXT, at);
  const end = next >= 0 ? next : all.indexOf(END, at);
  return end < 0 ? -1 : end + 1;
}

function entryIn(bytes: Buffer): DirectoryEntry {
  try {
    return parseEntry(parseJsonLossless(bytes.toString('utf8')));
  } catch (cause) {
    if (isCode(cause, 'BAD_DIRECTORY')) throw cause;
    throw damaged('it is not JSON', cause);
  }
}

const damaged = (what: string, cause?: unknown): CodedError =>
  new CodedError('BAD_DIRECTORY', `a directory is damaged: ${what}`, { cause });
