import { JsonBytes } from '../../base/index.ts';

const bytesOf = (text: string): Uint8Array => Buffer.from(text, 'latin1');
const HEAD = bytesOf('{"stream":"kopia:indirect","entries":[');
const ROW = bytesOf('{');
const START = bytesOf('"s":');
const LENGTH = bytesOf('"l":');
const OBJECT = bytesOf('"o":"');
const END_OF_ROW = bytesOf('"}');
const NEXT = bytesOf(',');
const END = bytesOf(']}\n');
/** Character codes `g` to `z`: prefixes of contents. */
const FIRST_PREFIX = 103;
const LAST_PREFIX = 122;
/** Bytes of the shortest row without its hash. */
const ROW_BYTES_MIN = 8;

/**
 * Index keys of the contents that an index object lists, `keyBytes` each, without gaps. Undefined
 * if the JSON has another form than Kopia's and ours, lists other objects than contents, or is
 * damaged.
 */
export function readPieceKeys(bytes: Uint8Array, keyBytes: number): Uint8Array | undefined {
  const hashBytes = keyBytes - 1;
  const rowsMax = Math.ceil(bytes.length / (2 * hashBytes + ROW_BYTES_MIN));
  const keys = new Uint8Array(rowsMax * keyBytes);
  const json = new JsonBytes(bytes);
  if (!json.take(HEAD)) return undefined;
  let end = 0;
  for (let at = 0; at < keys.length; at += keyBytes) {
    if (!json.take(ROW)) return undefined;
    const start = json.take(START) ? json.field() : 0;
    const length = json.take(LENGTH) ? json.field() : 0;
    if (start !== end || Number.isNaN(length) || !json.take(OBJECT)) return undefined;
    end += length;
    if (!Number.isSafeInteger(end)) return undefined;
    const prefix = bytes[json.at] as number;
    if (prefix >= FIRST_PREFIX && prefix <= LAST_PREFIX) {
      keys[at] = prefix;
      json.at++;
    }
    if (!json.hex(keys, at + 1, hashBytes) || !json.take(END_OF_ROW)) return undefined;
    if (json.take(NEXT)) continue;
    const isEnd = json.take(END) && json.at === bytes.length;
    return isEnd ? keys.subarray(0, at + keyBytes) : undefined;
  }
  return undefined;
}
