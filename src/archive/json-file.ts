import { z } from 'zod';
import { formatBytes, goJson, goString, parseJsonLossless } from '../base/index.ts';
import type { Body } from '../blob/index.ts';
import { damaged } from './damaged-error.ts';
import { gunzipped, gzipped } from './gzip.ts';

/** Our choice: a resource list of two million items. */
export const JSON_BYTES_MAX = 256 << 20;

/** Each value takes 50 bytes in memory, and two in a file. Our choice: a long resource list. */
const VALUES_MAX = 4_000_000;
/** Shorter files cannot have too many values. */
const COUNTED_BYTES = VALUES_MAX;

/** Velero's form: Go's JSON and a line feed, compressed (pkg/util/encode, ToJSONGzip). */
export async function encodeJsonGzip(value: unknown): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(gzipped(jsonPieces(value))));
}

/** Yields element by element, so that memory never holds a long list as one string. */
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

/** Writes an object of string lists. Memory holds only a few of a million strings. */
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

/** Like `json.MarshalIndent` with two spaces. */
export function goJsonIndented(value: unknown): string {
  let text = '';
  let depth = 0;
  let isEmpty = false;
  const line = (): string => `\n${'  '.repeat(depth)}`;
  // Matches whole strings, because they may contain syntax characters.
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

/** JSON of a compressed file. Throws `DAMAGED_ARCHIVE` with the key, and errors of the body. */
export function decodeJsonGzip<S extends z.ZodType>(
  body: Body,
  key: string,
  schema: S,
): Promise<z.infer<S>> {
  return decodeJson(gunzipped(body, { key, bytesMax: JSON_BYTES_MAX }), key, schema);
}

/** All bytes of a body. Throws `DAMAGED_ARCHIVE` for more than `bytesMax`. */
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

/** Like {@link decodeJsonGzip} for an uncompressed file. Integers beyond 2^53 become bigint. */
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

/** Counts objects, lists and their elements by their syntax characters. */
function valuesIn(bytes: Buffer): number {
  let count = 0;
  let isString = false;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte === 0x22) isString = !isString;
    else if (isString) at += byte === 0x5c ? 1 : 0;
    else if (byte === 0x2c || byte === 0x5b || byte === 0x7b) count++;
  }
  return count;
}
