import { asBuffer, CodedError, isCode, parseJsonLossless } from '../base/index.ts';
import { type DirectoryEntry, parseEntry } from './directory.ts';
import { STREAM_START } from './directory-text.ts';

const START = Buffer.from(STREAM_START);
/**
 * Behind an entry: the next one begins, or the list ends; as in {@link DirectoryDecoder} neither
 * can be within one.
 */
const NEXT = Buffer.from('},{"name":"');
const END = Buffer.from('}],"summary":');
/** One entry is shorter; only a summary with the errors below a directory is long. */
const ENTRY_BYTES_MAX = 64 << 20;
/** What every version of Go writes in JSON as it is. */
const PLAIN = /^[ !#-%'-;=?-[\]-~]+$/;

/**
 * Whether entries of this name can be found in the bytes of a directory: others may be written in
 * several ways.
 */
export const isPlainName = (name: string): boolean => PLAIN.test(name);

/**
 * Looks for the entries of one name in the bytes of a directory, and parses no other: there may be
 * a million.
 */
export class DirectorySearch {
  readonly #needle: Buffer;
  #held: Buffer = Buffer.alloc(0);
  #isStarted = false;

  /** Of a name that {@link isPlainName}; `isWithin` a stream whose start was looked at already. */
  constructor(name: string, isWithin = false) {
    this.#needle = Buffer.from(`{"name":"${name}",`);
    this.#isStarted = isWithin;
  }

  /**
   * Entries that are whole with these bytes; undefined where the stream does not begin as Kopia and
   * we write it, and nothing can be told by this. Throws `BAD_DIRECTORY`.
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

  /**
   * Whether all of it could be looked through. Throws `BAD_DIRECTORY` where the stream ends within
   * an entry that is wanted.
   */
  finish(): boolean {
    const isCut = this.#held.subarray(0, this.#needle.length).equals(this.#needle);
    if (isCut) throw damaged('it ends within an entry');
    return this.#isStarted;
  }

  #hold(rest: Buffer, found: DirectoryEntry[]): DirectoryEntry[] {
    if (rest.length > ENTRY_BYTES_MAX) throw damaged('an entry is too long for its format');
    // A copy, lest a whole content is kept for some bytes.
    this.#held = Buffer.from(rest);
    return found;
  }
}

/**
 * The first entry that begins in a part of a stream behind its start; undefined where there is
 * none. Throws `BAD_DIRECTORY`.
 */
export function firstEntryIn(bytes: Uint8Array): DirectoryEntry | undefined {
  const all = asBuffer(bytes);
  const before = all.indexOf(NEXT);
  const end = before < 0 ? -1 : endOf(all, before + NEXT.length);
  return end < 0 ? undefined : entryIn(all.subarray(before + 2, end));
}

/** Behind its last byte; -1 where it is not there yet. */
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
