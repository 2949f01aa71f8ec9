import { JsonBytes } from '../../base/index.ts';
import { EXTRA_FIELD, STREAM_END, STREAM_START } from './directory-text.ts';

const bytesOf = (text: string): Uint8Array => Buffer.from(text, 'latin1');
const START = bytesOf(STREAM_START);
const NAME = bytesOf('{"name":"');
const TYPE = bytesOf(',"type":"');
const TYPE_END = bytesOf('",');
const MODE = bytesOf('"mode":"0');
const SIZE = bytesOf('"size":');
const TIME = bytesOf('"mtime":"');
const OWNER = bytesOf('"uid":');
const GROUP = bytesOf('"gid":');
const OBJECT = bytesOf('"obj":"');
const SUMMARY = bytesOf('","summ":');
const OBJECT_END = bytesOf('"');
const EXTRA = bytesOf(EXTRA_FIELD);
const COMMA = bytesOf(',');
const CLOSE = bytesOf('}');
const LIST_END = bytesOf(STREAM_END);
const STREAM_CLOSE = bytesOf('}\n');
const LETTER_I = 73;
/** Character codes `g` to `z`: prefixes of contents. */
const FIRST_PREFIX = 103;
const LAST_PREFIX = 122;
const LETTERS = [65, 122] as const;
/** As in object IDs (repository/object/object-id.ts). */
const INDIRECTIONS_MAX = 8;
/** Bytes of the shortest entry without its hash. */
const ENTRY_BYTES_MIN = 30;

/** The objects of a directory, in stored order. */
export interface DirectoryObjects {
  readonly count: number;
  /** Character codes of the types. */
  readonly types: Uint8Array;
  /** Levels of indexes above the content of a key. */
  readonly indirections: Uint8Array;
  /** Index keys of the contents that name the objects, without gaps. */
  readonly keys: Uint8Array;
}

/**
 * Types and objects of all entries of a directory stream. Other fields are only checked for their
 * form. Undefined if the form differs from Kopia's and ours. Then {@link decodeDirectory} reads it,
 * or reports the error.
 */
export function readDirectoryObjects(
  bytes: Uint8Array,
  keyBytes: number,
): DirectoryObjects | undefined {
  const hashBytes = keyBytes - 1;
  const countMax = Math.ceil(bytes.length / (2 * hashBytes + ENTRY_BYTES_MIN));
  const types = new Uint8Array(countMax);
  const indirections = new Uint8Array(countMax);
  const keys = new Uint8Array(countMax * keyBytes);
  const json = new JsonBytes(bytes);
  if (!json.take(START)) return undefined;
  for (let i = 0; i < countMax; i++) {
    if (!json.take(NAME) || !json.skipString() || !json.take(TYPE)) return undefined;
    const type = bytes[json.at++] as number;
    if (!(type >= LETTERS[0] && type <= LETTERS[1]) || !json.take(TYPE_END)) return undefined;
    types[i] = type;
    if (!skipMetadata(json) || !json.take(OBJECT)) return undefined;
    let levels = 0;
    while (bytes[json.at] === LETTER_I) {
      levels++;
      json.at++;
    }
    if (levels > INDIRECTIONS_MAX) return undefined;
    indirections[i] = levels;
    const at = i * keyBytes;
    const prefix = bytes[json.at] as number;
    if (prefix >= FIRST_PREFIX && prefix <= LAST_PREFIX) {
      keys[at] = prefix;
      json.at++;
    }
    if (!json.hex(keys, at + 1, hashBytes)) return undefined;
    if (json.take(SUMMARY) ? !json.skipObject() : !json.take(OBJECT_END)) return undefined;
    if (json.take(EXTRA) && !json.skipObject()) return undefined;
    if (!json.take(CLOSE)) return undefined;
    if (json.take(COMMA)) continue;
    const isEnd =
      json.take(LIST_END) &&
      json.skipObject() &&
      json.take(STREAM_CLOSE) &&
      json.at === bytes.length;
    return isEnd ? { count: i + 1, types, indirections, keys } : undefined;
  }
  return undefined;
}

/** Skips the fields between type and object. */
function skipMetadata(json: JsonBytes): boolean {
  if (json.take(MODE) && !(skipDigits(json) && json.take(TYPE_END))) return false;
  if (json.take(SIZE) && Number.isNaN(json.field())) return false;
  if (json.take(TIME) && !(json.skipString() && json.take(COMMA))) return false;
  if (json.take(OWNER) && Number.isNaN(json.field())) return false;
  return !(json.take(GROUP) && Number.isNaN(json.field()));
}

/** Skips octal digits. */
function skipDigits(json: JsonBytes): boolean {
  for (;;) {
    const byte = json.bytes[json.at] as number;
    if (!(byte >= 48 && byte <= 55)) return true;
    json.at++;
  }
}
