import { asBuffer, CodedError, isCode, parseJsonLossless } from '../../base/index.ts';
import { DIRECTORY_STREAM } from './directory-text.ts';
import {
  type ContentManager,
  type ObjectId,
  parseObjectId,
  readObject,
  type Repository,
  streamObject,
} from '../../repository/index.ts';
import {
  decodeDirectory,
  type DirectoryEntry,
  type DirectorySummary,
  parseEntry,
} from './directory.ts';

const START = Buffer.from(`{"stream":"${DIRECTORY_STREAM}","entries":[`);
/** Occurs only between entries: quotes in strings are escaped, and summaries have no names. */
const BETWEEN = Buffer.from('},{"name":"');
/** Bytes parsed at once, some thousand entries. */
const BLOCK_BYTES = 1 << 20;
/** Maximum size of a stream in another form than Kopia's and ours, which is parsed whole. */
const WHOLE_BYTES_MAX = 64 << 20;

/** Parses a directory stream as it arrives, in parts. Skipped entries are not parsed. */
export class DirectoryDecoder {
  #toSkip: number;
  #held: Uint8Array[] = [];
  #heldBytes = 0;
  /** Undefined until enough bytes have arrived. */
  #isRegular: boolean | undefined;

  constructor(skip = 0) {
    this.#toSkip = skip;
  }

  /** Entries completed by these bytes. Throws `BAD_DIRECTORY`. */
  *push(bytes: Uint8Array): Generator<DirectoryEntry[]> {
    for (let at = 0; at < bytes.length; at += BLOCK_BYTES) {
      const part = bytes.subarray(at, at + BLOCK_BYTES);
      this.#held.push(part);
      this.#heldBytes += part.length;
      if (this.#heldBytes < BLOCK_BYTES) continue;
      const entries = this.#take();
      if (entries.length > 0) yield entries;
      if (this.#heldBytes > WHOLE_BYTES_MAX) throw damaged('it is too long for its format');
    }
  }

  /** The last entries and the summary. Throws `BAD_DIRECTORY`. */
  finish(): { entries: DirectoryEntry[]; summary: DirectorySummary | undefined } {
    const rest = Buffer.concat(this.#held);
    const bytes = this.#isRegular === true ? Buffer.concat([START, rest]) : rest;
    const { entries, summary } = decodeDirectory(bytes);
    return { entries: this.#unskipped(entries), summary };
  }

  #unskipped(entries: DirectoryEntry[]): DirectoryEntry[] {
    if (this.#toSkip === 0) return entries;
    const skipped = Math.min(this.#toSkip, entries.length);
    this.#toSkip -= skipped;
    return entries.slice(skipped);
  }

  /** All held entries except the last, because the list may end after it. */
  #take(): DirectoryEntry[] {
    let held = Buffer.concat(this.#held);
    if (this.#isRegular === undefined) {
      this.#isRegular = held.subarray(0, START.length).equals(START);
      if (this.#isRegular) held = held.subarray(START.length);
    }
    const end = this.#isRegular ? held.lastIndexOf(BETWEEN) : -1;
    this.#held = [held.subarray(end + (end < 0 ? 1 : 2))];
    this.#heldBytes = (this.#held[0] as Uint8Array).length;
    if (end < 0) return [];
    if (this.#toSkip > 0) {
      const count = countOf(BETWEEN, held);
      if (count <= this.#toSkip) {
        this.#toSkip -= count;
        return [];
      }
    }
    try {
      const text = held.toString('utf8', 0, end + 1);
      return this.#unskipped((parseJsonLossless(`[${text}]`) as unknown[]).map(parseEntry));
    } catch (cause) {
      if (isCode(cause, 'BAD_DIRECTORY')) throw cause;
      throw damaged('it is not JSON', cause);
    }
  }
}

function countOf(wanted: Buffer, bytes: Buffer): number {
  let count = 0;
  for (let at = bytes.indexOf(wanted); at >= 0; at = bytes.indexOf(wanted, at + wanted.length)) {
    count++;
  }
  return count;
}

function damaged(what: string, cause?: unknown): CodedError {
  return new CodedError('BAD_DIRECTORY', `a directory is damaged: ${what}`, { cause });
}

/**
 * Entries of a directory object in stored order, in batches. Nearly all directories are one content
 * and give one batch. The first `skip` entries are read but not parsed, so damage in them may go
 * unnoticed. Returns the summary. Throws `BAD_DIRECTORY` and read errors.
 */
export async function* streamDirectory(
  contents: ContentManager,
  id: ObjectId,
  { skip = 0, ...options }: { signal?: AbortSignal | undefined; skip?: number | undefined } = {},
): AsyncGenerator<DirectoryEntry[], DirectorySummary | undefined> {
  if (parseObjectId(id).indirections === 0) {
    const { entries, summary } = decodeDirectory(await readObject(contents, id, options));
    yield entries.slice(skip);
    return summary;
  }
  const decoder = new DirectoryDecoder(skip);
  for await (const bytes of streamObject(contents, id, options)) {
    yield* decoder.push(asBuffer(bytes));
  }
  const { entries, summary } = decoder.finish();
  yield entries;
  return summary;
}

/** All entries of a small directory object. Throws `BAD_DIRECTORY` and read errors. */
export async function readDirectory(
  { contents }: Repository,
  id: ObjectId,
): Promise<DirectoryEntry[]> {
  const entries: DirectoryEntry[] = [];
  for await (const batch of streamDirectory(contents, id)) {
    for (const entry of batch) entries.push(entry);
  }
  return entries;
}
