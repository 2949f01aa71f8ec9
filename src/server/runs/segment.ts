import { createHash } from 'node:crypto';
import { gunzipSync } from 'node:zlib';
import { z } from 'zod';
import { CodedError, messageOf } from '../../base/index.ts';

/** A warning or an error of a run. */
export const entrySchema = z.object({
  level: z.enum(['warn', 'error']),
  namespace: z.string().optional(),
  text: z.string(),
  /** Restores only: the item's key. Used to drop entries that a retry writes twice. */
  resource: z.string().optional(),
  name: z.string().optional(),
});
export type JournalEntry = z.infer<typeof entrySchema>;

/** Fields that the records of every journal have. */
export const triesSchema = z.object({
  /**
   * In the first segment of a try: the earlier segments that count. Later ones of a late process do
   * not count.
   */
  includes: z.array(z.string()).optional(),
});
export type TryRecords = z.infer<typeof triesSchema>;

/** A numbered object of a journal. Counts as a whole or not at all. */
export interface Segment<R extends TryRecords> {
  readonly records: R;
  /** A gzip member: a part of the tarball. Empty in restores. */
  readonly tar: Buffer;
  /** A gzip member: a part of the log. */
  readonly log: Buffer;
}

const MAGIC = Buffer.from('LSJRNL1\n');
const HEAD_BYTES = MAGIC.length + 3 * 4 + 32;
/** Our choice: larger than any segment. */
const RECORDS_BYTES_MAX = 256 << 20;

/** Compressed parts of a segment. `records` are JSON. */
export interface SegmentParts {
  readonly records: Buffer;
  readonly tar: Buffer;
  readonly log: Buffer;
}

/** Format: magic, lengths, and SHA-256 of the rest. The parts follow in this order. */
export function encodeSegment(parts: SegmentParts): Buffer {
  const body = Buffer.concat([parts.records, parts.tar, parts.log]);
  const head = Buffer.alloc(HEAD_BYTES);
  MAGIC.copy(head);
  let at = MAGIC.length;
  for (const { length } of [parts.records, parts.tar, parts.log])
    at = head.writeUInt32LE(length, at);
  createHash('sha256').update(body).digest().copy(head, at);
  return Buffer.concat([head, body]);
}

/** Throws `DAMAGED_JOURNAL`. */
export function decodeSegment<R extends TryRecords>(
  bytes: Buffer,
  key: string,
  schema: z.ZodType<R>,
): Segment<R> {
  if (bytes.length < HEAD_BYTES || !bytes.subarray(0, MAGIC.length).equals(MAGIC)) {
    throw damaged(key, 'it is no segment of a journal');
  }
  const lengths = [0, 1, 2].map((index) => bytes.readUInt32LE(MAGIC.length + 4 * index));
  const body = bytes.subarray(HEAD_BYTES);
  const sum = bytes.subarray(HEAD_BYTES - 32, HEAD_BYTES);
  const [records = 0, tar = 0, log = 0] = lengths;
  if (records + tar + log !== body.length) throw damaged(key, 'its length is wrong');
  if (!createHash('sha256').update(body).digest().equals(sum)) {
    throw damaged(key, 'its checksum is wrong');
  }
  try {
    const text = gunzipSync(body.subarray(0, records), { maxOutputLength: RECORDS_BYTES_MAX });
    return {
      records: schema.parse(JSON.parse(text.toString('utf8'))),
      tar: body.subarray(records, records + tar),
      log: body.subarray(records + tar),
    };
  } catch (error) {
    throw damaged(key, messageOf(error));
  }
}

const damaged = (key: string, reason: string): CodedError =>
  new CodedError('DAMAGED_JOURNAL', `${key} cannot be read: ${reason}`);
