import * as zlib from 'node:zlib';
import { z } from 'zod';
import {
  CodedError,
  goJson,
  type Nanoseconds,
  parseGoTime,
  parseJsonLossless,
} from '../../base/index.ts';

/** A manifest, or its deletion, as stored in a content. */
export interface StoredEntry {
  id: string;
  labels: Record<string, string> | null;
  modified: string;
  modifiedNs: Nanoseconds;
  deleted: boolean;
  data: unknown;
}

const entrySchema = z.object({
  id: z.string().regex(/^[0-9a-f]{8,64}$/),
  labels: z.record(z.string(), z.string()).nullish(),
  modified: z.string(),
  deleted: z.boolean().optional(),
  data: z.unknown(),
});
const schema = z.object({ entries: z.array(z.unknown()).nullish() });

/** Manifest contents are small. A gzip that expands beyond this is an attack. Our choice. */
const DECODED_BYTES_MAX = 512 << 20;
/**
 * Maximum JSON in one content, about 30,000 snapshots. Merges split more into several contents. Our
 * choice: packs take contents of at least 22 MiB (content/pack-buffers.ts), and gzip shrinks random
 * text to three quarters.
 */
const CONTENT_CHARS_MAX = 24 << 20;
/** Decodes one `m` content. Throws `BAD_MANIFEST`. */
export function decodeManifests(content: Uint8Array): StoredEntry[] {
  return decodeWith(content, parseJsonLossless, () => true);
}

/**
 * The deletions in one `m` content. Several times as fast as decoding all manifests, which may be
 * 24 MiB of JSON. Throws `BAD_MANIFEST`.
 */
export function decodeDeletions(content: Uint8Array): StoredEntry[] {
  return decodeWith(content, JSON.parse, (entry) => isDeleted(entry));
}

const isDeleted = (entry: unknown): boolean =>
  typeof entry === 'object' && entry !== null && 'deleted' in entry && entry.deleted === true;

function decodeWith(
  content: Uint8Array,
  parse: (json: string) => unknown,
  isWanted: (entry: unknown) => boolean,
): StoredEntry[] {
  try {
    const json = zlib.gunzipSync(content, { maxOutputLength: DECODED_BYTES_MAX });
    const { entries } = schema.parse(parse(json.toString('utf8')));
    return (entries ?? []).filter(isWanted).map((entry) => {
      const { id, labels, modified, deleted, data } = entrySchema.parse(entry);
      const modifiedNs = parseGoTime(modified);
      return { id, labels: labels ?? null, modified, modifiedNs, deleted: deleted ?? false, data };
    });
  } catch (cause) {
    throw new CodedError('BAD_MANIFEST', 'a manifest content is damaged', { cause });
  }
}

/** As many contents as needed, one at a time because each may be long. */
export function* encodeManifests(entries: readonly StoredEntry[]): Generator<Uint8Array> {
  let rows: string[] = [];
  let chars = 0;
  const encode = (): Uint8Array =>
    zlib.gzipSync(Buffer.from(`{"entries":[${rows.join(',')}]}\n`), { level: 1 });
  for (const { id, labels, modified, deleted, data } of entries) {
    const row = goJson({
      id,
      labels: labels && new Map(Object.entries(labels)),
      modified,
      deleted: deleted || undefined,
      data: data ?? null,
    });
    if (rows.length > 0 && chars + row.length > CONTENT_CHARS_MAX) {
      yield encode();
      rows = [];
      chars = 0;
    }
    rows.push(row);
    chars += row.length;
  }
  if (rows.length > 0) yield encode();
}

/** Keeps the later of two entries with the same ID. */
export function keepLatest(all: Map<string, StoredEntry>, entry: StoredEntry): void {
  const present = all.get(entry.id);
  if (!present || entry.modifiedNs > present.modifiedNs) all.set(entry.id, entry);
}
