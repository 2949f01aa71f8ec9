import { z } from 'zod';
import { formatBytes, goJson, goString, parseJsonLossless } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import { damaged } from './damage.ts';
import { gunzipped, gzipped } from './gzip.ts';

/** Our choice: a resource list of two million items. */
export const JSON_BYTES_MAX = 256 << 20;

/**
 * Each takes 50 bytes at least once it is read, and two in the file. Our choice: a resource list of
 * that length.
 */
const VALUES_MAX = 4_000_000;
/** Shorter files cannot have so many. */
const COUNTED_BYTES = VALUES_MAX;

/**
 * A value as Velero stores it: Go's JSON and a line feed, compressed (pkg/util/encode, ToJSONGzip).
 */
export async function encodeJsonGzip(value: unknown): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(gzipped(jsonPieces(value))));
}

/** Element by element, so that a long list is no second time in memory as one text. */
function* jsonPieces(value: unknown): Generator<Buffer> {
  if (!Array.isArray(value)) {
    yield Buffer.from(`${goJson(value)}\n`);
    return;
  }
  for (const [index, element] of (value as unknown[]).entries()) {
    yield Buffer.from(`${index === 0 ? '[' : ','}${goJson(element)}`);
  }
  yield Buffer.from(value.length === 0 ? '[]\n' : ']\n');
}

/** Our choice: each piece is a call of zlib. */
const PIECE_LENGTH = 32 << 10;

/**
 * Lists of texts by their names, as {@link encodeJsonGzip} writes the same as an object; of a
 * million texts a few are in memory at a time.
 */
export async function encodeListsGzip(
  lists: Iterable<readonly [name: string, texts: Iterable<string>]>,
): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(gzipped(listPieces(lists))));
}

function* listPieces(
  lists: Iterable<readonly [name: string, texts: Iterable<string>]>,
): Generator<Buffer> {
  let piece = '{';
  let isFirstList = true;
  for (const [name, texts] of lists) {
    piece += `${isFirstList ? '' : ','}${goString(name)}:[`;
    isFirstList = false;
    let isFirst = true;
    for (const text of texts) {
      piece += `${isFirst ? '' : ','}${goString(text)}`;
      isFirst = false;
      if (piece.length < PIECE_LENGTH) continue;
      yield Buffer.from(piece);
      piece = '';
    }
    piece += ']';
  }
  yield Buffer.from(`${piece}}\n`);
}

/** As `json.MarshalIndent` with two spaces. */
export function goJsonIndented(value: unknown): string {
  let text = '';
  let depth = 0;
  let isEmpty = false;
  const line = (): string => `\n${'  '.repeat(depth)}`;
  // Strings are taken whole: what looks like syntax inside them is none.
  for (const [token] of goJson(value).matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^"{}[\],:]+/gs)) {
    if (token === '}' || token === ']') {
      depth--;
      text += isEmpty ? token : line() + token;
      isEmpty = false;
      continue;
    }
    if (isEmpty) text += line();
    isEmpty = token === '{' || token === '[';
    if (isEmpty) depth++;
    text += token === ',' ? `,${line()}` : token === ':' ? ': ' : token;
  }
  return text;
}

/** JSON of a compressed file. Throws `DAMAGED_ARCHIVE` that names it, and errors of the body. */
export function decodeJsonGzip<S extends z.ZodType>(
  body: Body,
  key: string,
  schema: S,
): Promise<z.infer<S>> {
  return decodeJson(gunzipped(body, { key, bytesMax: JSON_BYTES_MAX }), key, schema);
}

/** All bytes of a body; throws `DAMAGED_ARCHIVE` for more than `bytesMax`. */
export async function wholeOf(body: Body, key: string, bytesMax = JSON_BYTES_MAX): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for await (const piece of body) {
    length += piece.length;
    if (length > bytesMax) {
      throw damaged(key, `it is longer than ${formatBytes(bytesMax)}`);
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

/**
 * As {@link decodeJsonGzip}, of a file that is not compressed. Whole numbers beyond 2^53 become
 * bigint.
 */
export async function decodeJson<S extends z.ZodType>(
  body: Body,
  key: string,
  schema: S,
): Promise<z.infer<S>> {
  const bytes = await wholeOf(body, key);
  if (bytes.length > COUNTED_BYTES && valuesIn(bytes) > VALUES_MAX) {
    throw damaged(key, `it has more than ${VALUES_MAX} values`);
  }
  let value: unknown;
  try {
    value = parseJsonLossless(bytes.toString('utf8'));
  } catch (cause) {
    throw damaged(key, 'it is no JSON', cause);
  }
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const at = issue?.path.join('.') ?? '';
  throw damaged(key, `${at === '' ? '' : `${at}: `}${issue?.message ?? ''}`, parsed.error);
}

/** Objects, lists and elements of them, as far as JSON is what it looks like. */
function valuesIn(bytes: Buffer): number {
  let count = 0;
  let isString = false;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte === 0x22) isString = !isString;
    else if (isString) at += byte === 0x5c ? 1 : 0;
    // `,`, `[` and `{`.
    else if (byte === 0x2c || byte === 0x5b || byte === 0x7b) count++;
  }
  return count;
}
