import { closeSync, constants } from 'node:fs';
import type { FileStatus, StatusReader } from '../../base/index.ts';
import {
  type BytePath,
  type DirectoryComparison,
  type ExtraRules,
  lookAtNamesIn,
  openDirectly,
  readExtra,
  type SameFiles,
  STAT_FIELDS,
} from '../../volume-files/index.ts';
import { STREAM_END, STREAM_START } from './directory-text.ts';
import { StreamCursor } from './stream-cursor.ts';

/** Maximum size of the reused key buffer. Larger directories get their own memory. Our choice. */
const KEYS_KEPT_MAX = 4 << 20;
const COMMA = 44;
const LETTER_F = 102;
const LETTER_S = 115;
const TYPE_MASK = 0o170000;
const REGULAR = 0o100000;
const DIRECTORY = 0o040000;
const SYMLINK = 0o120000;
const ASCII = /^[\u0020-\u007e]+$/;

/**
 * Result of comparing a directory with an earlier stream. `differs` if a file has changed,
 * `unknown` if anything is unusual.
 */
export type DirectoryCheck = DirectoryComparison | 'differs' | 'unknown';

export interface CheckedDirectory {
  readonly path: BytePath;
  /** The earlier stream. The comparison changes its bytes temporarily. */
  readonly stream: Buffer;
  readonly hashBytes: number;
  /** Files whose presence requires a listing. */
  readonly special: readonly string[];
  /** Maximum names in a directory to check. Larger directories are listed. */
  readonly entriesMax: number;
  /** The extra attributes that the backup keeps. */
  readonly rules?: ExtraRules | undefined;
  /** As in `PackedStream`. */
  readonly plainBefore?: number;
}

/**
 * Compares a directory with an earlier stream, without listing it. Checks each entry of the stream
 * and the number of names in the directory. If both match, the directory has nothing else. Never
 * reports a changed directory as unchanged. If the result is `unknown`, list the directory.
 */
export function checkDirectory(checked: CheckedDirectory, reader: StatusReader): DirectoryCheck {
  const { path, stream, special, hashBytes, rules, plainBefore = -Infinity } = checked;
  if (!stream.subarray(0, STREAM_START.length).equals(Buffer.from(STREAM_START))) return 'unknown';
  const end = stream.lastIndexOf(STREAM_END);
  const isWhole = end >= STREAM_START.length - 1 && stream.subarray(-2).equals(Buffer.from('}\n'));
  if (!isWhole || special.some((name) => stream.includes(`"name":"${name}"`))) return 'unknown';
  const filesAt = startOfFiles(stream, end);
  // The comma between directories and files belongs to neither.
  const isFirst = filesAt === STREAM_START.length || filesAt === end;
  if (!isFirst && stream[filesAt - 1] !== COMMA) return 'unknown';
  const directoriesEnd = isFirst ? filesAt : filesAt - 1;
  const directories = `[${stream.toString('latin1', STREAM_START.length, directoriesEnd)}]`;
  const names = namesOf(directories);
  if (!names) return 'unknown';
  const summary = stream.toString('latin1', end + STREAM_END.length, stream.length - 2);
  let descriptor: number;
  try {
    descriptor = openDirectly(path, constants.O_RDONLY | constants.O_DIRECTORY);
  } catch {
    return 'unknown';
  }
  try {
    const files = checkFiles({
      stream,
      keyBytes: hashBytes + 1,
      from: filesAt,
      end,
      descriptor,
      rules,
      plainBefore,
      reader,
    });
    if (typeof files === 'string') return files;
    const count = reader.countNames(descriptor);
    // Different subdirectories do not make the files different, so list the directory.
    if (count === undefined || count !== files.entries + names.length) return 'unknown';
    if (count > checked.entriesMax) return 'unknown';
    const found = lookAtNamesIn(
      { descriptor, rules },
      path,
      Buffer.from(names.map((name) => `${name}\0`).join('')),
    );
    if (found.failures.length > 0 || found.unread?.length) return 'unknown';
    const types = Array.from(names, (_name, i) => Number(found.stats[i * STAT_FIELDS]) & TYPE_MASK);
    if (types.some((type) => type !== DIRECTORY)) return 'unknown';
    return { listing: { ...found, names }, same: { ...files, directories, summary } };
  } finally {
    closeSync(descriptor);
  }
}

/** Start of the first entry that is not a directory, or `end`. */
function startOfFiles(stream: Buffer, end: number): number {
  // Quotes within names are escaped, so a match is a field.
  const found = [',"type":"f"', ',"type":"s"'].map((field) => stream.indexOf(field));
  const first = Math.min(...found.filter((at) => at >= 0), end);
  return first === end ? end : stream.lastIndexOf('{"name":"', first);
}

/** Names of these directories. Undefined if any entry is unusual. */
function namesOf(directories: string): string[] | undefined {
  let parsed: unknown;
  try {
    parsed = JSON.parse(directories);
  } catch {
    return undefined;
  }
  const entries = parsed as { name?: unknown; type?: unknown }[];
  const names = entries.flatMap(({ name, type }) =>
    type === 'd' && typeof name === 'string' && ASCII.test(name) && !name.includes('/') ? name : [],
  );
  return new Set(names).size === entries.length ? names : undefined;
}

interface FilesToCheck {
  readonly rules: ExtraRules | undefined;
  readonly plainBefore: number;
  readonly stream: Buffer;
  readonly keyBytes: number;
  readonly from: number;
  readonly end: number;
  readonly descriptor: number;
  readonly reader: StatusReader;
}

/** The stream's data about files, if every file is unchanged. */
function checkFiles(
  checked: FilesToCheck,
): Omit<SameFiles, 'directories' | 'summary'> | 'differs' | 'unknown' {
  const { stream, keyBytes, from, end, descriptor, reader } = checked;
  // An entry is longer than twice its key.
  const keys = keysRoom(Math.ceil((end - from) / 2));
  const cursor = new StreamCursor(stream, from, keys, keyBytes);
  let entries = 0;
  let files = 0;
  let bytes = 0;
  let before = { at: from, end: from };
  for (; cursor.at < end; entries++) {
    if (entries > 0 && !cursor.skip(COMMA)) return 'unknown';
    if (!cursor.next(entries * keyBytes)) return 'unknown';
    const { nameAt, nameEnd, type } = cursor;
    // The names are sorted, so none occurs twice.
    if (stream.compare(stream, before.at, before.end, nameAt, nameEnd) <= 0) return 'unknown';
    before = { at: nameAt, end: nameEnd };
    if (type !== LETTER_F && type !== LETTER_S) return 'unknown';
    const same = cursor.withName((name) => {
      const status = reader.look(descriptor, name);
      return status && isSame(status, cursor) && hasSameExtra(checked, cursor, name, status);
    });
    if (same !== true) return 'differs';
    if (type !== LETTER_F) continue;
    files++;
    bytes += cursor.sizeBytes;
  }
  // Copy to an exact length, because the keys are sent to another thread.
  return {
    entries,
    files,
    bytes,
    keys: Uint8Array.prototype.slice.call(keys, 0, entries * keyBytes),
  };
}

/** Reused for all directories. New buffers would pile up until garbage collection. */
let keysScratch = Buffer.alloc(0);
function keysRoom(length: number): Buffer {
  if (length > KEYS_KEPT_MAX) return Buffer.allocUnsafeSlow(length);
  if (keysScratch.length < length) keysScratch = Buffer.allocUnsafeSlow(Math.max(length, 65_536));
  return keysScratch;
}

/**
 * Skips entries without extra attributes if their inode has not changed since. Entries with extra
 * attributes are read again, because a volume restored to an earlier state has old times.
 */
function hasSameExtra(
  { stream, descriptor, rules, plainBefore }: FilesToCheck,
  { extraAt, extraEnd }: StreamCursor,
  name: Uint8Array,
  status: FileStatus,
): boolean {
  const isPlain = extraAt === extraEnd;
  const isLinked = rules?.links === true && status.links > 1;
  if (isPlain && !isLinked && (!rules || status.changedSeconds < plainBefore)) return true;
  try {
    const extra = readExtra({ descriptor, rules }, name, status) ?? '';
    return stream.toString('latin1', extraAt, extraEnd) === extra;
  } catch {
    // The listing will report the read error.
    return false;
  }
}

function isSame(status: FileStatus, entry: StreamCursor): boolean {
  const { mode } = status;
  return (
    (mode & TYPE_MASK) === (entry.type === LETTER_F ? REGULAR : SYMLINK) &&
    (mode & 0o7777) === entry.mode &&
    status.sizeBytes === entry.sizeBytes &&
    status.seconds === entry.seconds &&
    status.nanoseconds === entry.nanoseconds &&
    status.uid === entry.uid &&
    status.gid === entry.gid
  );
}
