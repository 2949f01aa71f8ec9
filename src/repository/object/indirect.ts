import { z } from 'zod';
import { CodedError } from '../../base/index.ts';
import { type ObjectId, parseObjectId } from './object-id.ts';

/**
 * A piece of an object: `length` bytes at `start`, which are the object `id`; `count` times, one
 * after the other. Holes of a volume are one chunk of zeros over and over, and so are one entry
 * here.
 */
export interface IndirectEntry {
  readonly start: number;
  readonly length: number;
  readonly id: ObjectId;
  readonly count: number;
}

export const endOf = ({ start, length, count }: Omit<IndirectEntry, 'id'>): number =>
  start + length * count;

/** Bytes of an object that consists of these, in order. */
export function objectLength(parts: readonly Omit<IndirectEntry, 'id'>[]): number {
  const last = parts.at(-1);
  return last ? endOf(last) : 0;
}

const STREAM = 'kopia:indirect';
const HEAD = `{"stream":"${STREAM}","entries":[`;
/** JSON text that is made or parsed at once. */
const TEXT_BYTES = 64 << 10;

const rowSchema = z.object({
  s: z.int().min(0).optional().default(0),
  l: z.int().min(0).optional().default(0),
  o: z.string(),
});
const schema = z.object({ stream: z.literal(STREAM), entries: z.array(rowSchema) });
type Row = z.infer<typeof rowSchema>;

/** JSON of an index object, byte for byte as Kopia's encoder writes it, in parts. */
export function* encodeIndirect(entries: Iterable<IndirectEntry>): Generator<Uint8Array> {
  let text = HEAD;
  let separator = '';
  for (const { start, length, id, count } of entries) {
    const size = length === 0 ? '' : `"l":${length},`;
    for (let i = 0; i < count; i++) {
      const at = start + i * length;
      text += `${separator}{${at === 0 ? '' : `"s":${at},`}${size}"o":"${id}"}`;
      separator = ',';
      if (text.length < TEXT_BYTES) continue;
      yield Buffer.from(text);
      text = '';
    }
  }
  yield Buffer.from(`${text}]}\n`);
}

/**
 * Parses an index object as it arrives. Throws `BAD_OBJECT` unless its entries follow one another
 * without a gap.
 */
export class IndirectDecoder {
  readonly #decoder = new TextDecoder('utf-8', { fatal: true });
  readonly #entries: IndirectEntry[] = [];
  #text = '';
  /**
   * It begins as Kopia writes it, so that rows can be taken off; undefined before that is known.
   */
  #isRegular: boolean | undefined;

  push(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length; at += TEXT_BYTES) {
      this.#guard(() => {
        this.#text += this.#decoder.decode(bytes.subarray(at, at + TEXT_BYTES), { stream: true });
        this.#takeRows();
      });
    }
  }

  /**
   * Hands out the entries that are whole, and forgets them; the last one stays, since it may go on.
   */
  take(): IndirectEntry[] {
    return this.#entries.splice(0, this.#entries.length - 1);
  }

  finish(): IndirectEntry[] {
    this.#guard(() => {
      this.#text += this.#decoder.decode();
      const head = this.#isRegular === true ? HEAD : '';
      for (const row of schema.parse(JSON.parse(head + this.#text)).entries) this.#add(row);
    });
    return this.#entries;
  }

  /** Takes all rows off the text but the last, behind which the list may end. */
  #takeRows(): void {
    if (this.#isRegular === undefined && this.#text.length >= HEAD.length) {
      this.#isRegular = this.#text.startsWith(HEAD);
      if (this.#isRegular) this.#text = this.#text.slice(HEAD.length);
    }
    const end = this.#isRegular === true ? this.#text.lastIndexOf('},') : -1;
    if (end < 0) return;
    const rows = JSON.parse(`[${this.#text.slice(0, end + 1)}]`) as unknown[];
    this.#text = this.#text.slice(end + 2);
    for (const row of rows) this.#add(rowSchema.parse(row));
  }

  #add({ s: start, l: length, o }: Row): void {
    const last = this.#entries.at(-1);
    const end = objectLength(this.#entries);
    if (start !== end) {
      throw new CodedError('BAD_OBJECT', `an index object is damaged: gap at byte ${end}`);
    }
    if (last && last.id === o && last.length === length) {
      this.#entries[this.#entries.length - 1] = { ...last, count: last.count + 1 };
      return;
    }
    parseObjectId(o);
    this.#entries.push({ start, length, id: o as ObjectId, count: 1 });
  }

  #guard(parse: () => void): void {
    try {
      parse();
    } catch (cause) {
      if (cause instanceof CodedError && cause.code === 'BAD_OBJECT') throw cause;
      const text = 'an index object is damaged: not a list of objects';
      throw new CodedError('BAD_OBJECT', text, { cause });
    }
  }
}
