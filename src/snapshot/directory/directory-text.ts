import { asBuffer, formatGoTime, goString, type Nanoseconds, SECOND_NS } from '../../base/index.ts';
import { type DirectoryListing, type SameFiles, STAT_FIELDS } from '../../volume-files/index.ts';

/** The fields of a directory entry before its object. */
export interface EntryHead {
  readonly name: string;
  /** `f`, `d` or `s`. Other types are kept unchanged. */
  readonly type: string;
  /** Permission bits with setuid, setgid and sticky, as in `stat`: 0o7777. */
  readonly mode: number;
  readonly size: number;
  readonly mtimeNs: Nanoseconds;
  readonly uid: number;
  readonly gid: number;
}

export const DIRECTORY_STREAM = 'kopia:directory';
/** Setuid, setgid and sticky in Go (io/fs.FileMode) and Unix. */
export const GO_FLAGS: readonly [go: number, unix: number][] = [
  [1 << 23, 0o4000],
  [1 << 22, 0o2000],
  [1 << 20, 0o1000],
];

export function formatMode(mode: number): string {
  const flags =
    mode > 0o777 ? GO_FLAGS.reduce((sum, [go, unix]) => (mode & unix ? sum + go : sum), 0) : 0;
  return `0${(flags + (mode & 0o777)).toString(8)}`;
}

/** JSON of an entry up to its object, in Kopia's order: `{"name":…,"obj":"`. Omits zeros. */
export function entryHead({ name, type, mode, size, mtimeNs, uid, gid }: EntryHead): string {
  const first = name === '' ? '' : `"name":${goString(name)},`;
  const modeField = mode === 0 ? '' : `"mode":"${formatMode(mode)}",`;
  const sizeField = size === 0 || type === 'd' ? '' : `"size":${size},`;
  const time = mtimeNs === 0n ? '' : `"mtime":"${formatGoTime(mtimeNs)}",`;
  const owner = uid === 0 ? '' : `"uid":${uid},`;
  const group = gid === 0 ? '' : `"gid":${gid},`;
  return `{${first}"type":"${type}",${modeField}${sizeField}${time}${owner}${group}"obj":"`;
}

/** Longshore's own field, last in an entry. Empty without extra attributes. */
export const extraField = (extra: string | undefined): string =>
  extra === undefined ? '' : `${EXTRA_FIELD}${extra}`;
export const EXTRA_FIELD = ',"longshore":';

export const STREAM_START = `{"stream":"${DIRECTORY_STREAM}","entries":[`;
export const STREAM_END = '],"summary":';
const ASCII = /^[\u0020-\u007e]*$/;
const TYPE_MASK = 0o170000;
const REGULAR = 0o100000;
const DIRECTORY = 0o040000;
const SYMLINK = 0o120000;

/**
 * Compares a listing with an earlier stream as text, because Kopia and Longshore write one form.
 * Undefined if anything but directories differs, or if either side has anything unusual.
 */
export function compareWithStream(
  listing: DirectoryListing,
  stream: Uint8Array,
  hashBytes: number,
): SameFiles | undefined {
  const { names, stats, failures, extras } = listing;
  const extraOf = new Map(extras);
  const text = asBuffer(stream).toString('latin1');
  const end = text.lastIndexOf(STREAM_END);
  if (failures.length > 0 || !text.startsWith(STREAM_START) || !text.endsWith('}\n'))
    return undefined;
  if (
    end < STREAM_START.length ||
    !names.every((name) => typeof name === 'string' && ASCII.test(name))
  )
    return undefined;
  const order = (names as string[]).flatMap((name, i) => {
    const type = Number(stats[i * STAT_FIELDS]) & TYPE_MASK;
    return type === DIRECTORY ? [] : [{ name, i, type }];
  });
  order.sort((a, b) => (a.name < b.name ? -1 : 1));
  const keyBytes = hashBytes + 1;
  const keys = Buffer.alloc(order.length * keyBytes);
  let at = end;
  let files = 0;
  let bytes = 0;
  let directoriesEnd = end;
  for (const [position, { name, i, type }] of order.entries()) {
    if (type !== REGULAR && type !== SYMLINK) return undefined;
    const field = (k: number): bigint => stats[i * STAT_FIELDS + k] as bigint;
    const size = Number(field(1));
    const head = entryHead({
      name,
      type: type === REGULAR ? 'f' : 's',
      mode: Number(field(0)) & 0o7777,
      size,
      mtimeNs: field(2) * SECOND_NS + field(3),
      uid: Number(field(4)),
      gid: Number(field(5)),
    });
    if (position === 0) {
      at = text.indexOf(head, STREAM_START.length);
      if (at < 0) return undefined;
      directoriesEnd = at === STREAM_START.length ? at : at - 1;
    }
    if (!text.startsWith(head, at)) return undefined;
    const idEnd = text.indexOf('"', at + head.length);
    if (!writeKey(text.slice(at + head.length, idEnd), keys, position * keyBytes, keyBytes))
      return undefined;
    const isLast = position === order.length - 1;
    const rest = `${extraField(extraOf.get(i))}}`;
    if (!text.startsWith(rest + (isLast ? STREAM_END : ','), idEnd + 1)) return undefined;
    at = idEnd + rest.length + 2;
    if (type !== REGULAR) continue;
    files++;
    bytes += size;
  }
  return {
    entries: order.length,
    files,
    bytes,
    keys,
    directories: `[${text.slice(STREAM_START.length, directoriesEnd)}]`,
    summary: text.slice(end + STREAM_END.length, -2),
  };
}

/** Writes the key of an object's content. Returns false if it has another length. */
function writeKey(objectId: string, keys: Buffer, at: number, keyBytes: number): boolean {
  let start = 0;
  while (objectId[start] === 'I' || objectId[start] === 'Z') start++;
  const hasPrefix = (objectId.length - start) % 2 === 1;
  if (hasPrefix) keys[at] = objectId.charCodeAt(start++);
  const written = keys.write(objectId.slice(start), at + 1, 'hex');
  return written === keyBytes - 1 && objectId.length - start === 2 * written;
}
