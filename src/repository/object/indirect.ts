import { z } from 'zod';
import { asBuffer, CodedError } from '../../base/index.ts';
import { type ObjectId, parseObjectId } from './object-id.ts';

/** A piece of an object: `length` bytes at `start`, which are the object `id`. */
export interface IndirectEntry {
  readonly start: number;
  readonly length: number;
  readonly id: ObjectId;
}

const STREAM = 'kopia:indirect';
const schema = z.object({
  stream: z.literal(STREAM),
  entries: z.array(
    z.object({
      s: z.int().min(0).optional().default(0),
      l: z.int().min(0).optional().default(0),
      o: z.string(),
    }),
  ),
});

/** JSON of an index object, byte for byte as Kopia's encoder writes it. */
export function encodeIndirect(entries: readonly IndirectEntry[]): Uint8Array {
  const rows = entries.map(({ start, length, id }) => {
    const from = start === 0 ? '' : `"s":${start},`;
    const size = length === 0 ? '' : `"l":${length},`;
    return `{${from}${size}"o":"${id}"}`;
  });
  return Buffer.from(`{"stream":"${STREAM}","entries":[${rows.join(',')}]}\n`);
}

/** Throws `BAD_OBJECT` unless the entries follow one another without a gap. */
export function decodeIndirect(bytes: Uint8Array): IndirectEntry[] {
  let entries: IndirectEntry[];
  try {
    const parsed = schema.parse(JSON.parse(asBuffer(bytes).toString('utf8')));
    entries = parsed.entries.map(({ s, l, o }) => {
      parseObjectId(o);
      return { start: s, length: l, id: o as ObjectId };
    });
  } catch (cause) {
    throw new CodedError('BAD_OBJECT', 'an index object is damaged: not a list of objects', {
      cause,
    });
  }
  let end = 0;
  for (const entry of entries) {
    if (entry.start !== end) {
      throw new CodedError('BAD_OBJECT', `an index object is damaged: gap at byte ${end}`);
    }
    end += entry.length;
  }
  return entries;
}
