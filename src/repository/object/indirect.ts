import { z } from 'zod';
import { CodedError } from '../../base/index.ts';
import { type ObjectId, parseObjectId } from './object-id.ts';

/**
 * A piece of an object: `length` bytes at `start` with the content of object `id`, repeated `count`
 * times. A hole in a volume is one repeated chunk of zeros, so it takes one entry.
 */
export interface IndirectEntry {
  readonly start: number;
  readonly length: number;
  readonly id: ObjectId;
  readonly count: number;
}

export const endOf = ({ start, length, count }: Omit<IndirectEntry, 'id'>): number =>
  start + length * count;

/** Length in bytes of an object with these parts, in order. */
export function objectLength(parts: readonly Omit<IndirectEntry, 'id'>[]): number {
  const last = parts.at(-1);
  return last ? endOf(last) : 0;
}

const STREAM = 'kopia:indirect';
const HEAD = `{"stream":"${STREAM}","entries":[`;
/** Characters of JSON encoded or parsed at once. */
const TEXT_BYTES = 64 << 10;

const rowSchema = z.object({
  s: z.int().min(0).optional().default(0),
  l: z.int().min(0).optional().default(0),
  o: z.string(),
});
const schema = z.object({ stream: z.literal(STREAM), entries: z.array(rowSchema) });
type Row = z.infer<typeof rowSchema>;

/** JSON of an index object in parts, byte for byte like Kopia's encoder. */
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

/** Parses an index object as it arrives. Throws `BAD_OBJECT` if its entries leave a gap. */
export class IndirectDecoder {
  readonly #decoder = new TextDecoder('utf-8', { fatal: true });
  readonly #entries: IndirectEntry[] = [];
  #text = '';
  /** Whether it starts like Kopia's JSON, to parse rows early. Undefined until known. */
  #isRegular: boolean | undefined;

  push(bytes: Uint8Array): void {
    for (let at = 0; at < bytes.length; at += TEXT_BYTES) {
      this.#guard(() => {
        this.#text += this.#decoder.decode(bytes.subarray(at, at + TEXT_BYTES), { stream: true });
        this.#takeRows();
      });
    }
  }

  /** Returns and drops the complete entries. The last one stays, because it may be repeated. */
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

  /** Parses all rows but the last, because the list may end after it. */
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
