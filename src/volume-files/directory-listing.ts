import { isAscii, isUtf8 } from 'node:buffer';
import {
  type BigIntStats,
  closeSync,
  constants,
  lstatSync,
  readdirSync,
  readlinkSync,
} from 'node:fs';
import {
  type FileStatus,
  joinPath,
  messageOf,
  posix,
  SECOND_NS,
  type StatusReader,
} from '../base/index.ts';
import { type BytePath, fsPath, shownPath, toldCode } from './byte-path.ts';
import { type ExtraPlace, type ExtraRules, readExtra } from './extra-attributes.ts';
import { openDirectly, pathOf } from './open-directly.ts';

/** A directory listing: names as they are on disk, attributes in one array of 64-bit numbers. */
export interface DirectoryListing {
  /** Strings; bytes if a name is not UTF-8. */
  readonly names: readonly (string | Uint8Array)[];
  /** {@link STAT_FIELDS} numbers a name: mode, size, mtime (s and ns). Then uid, gid and device. */
  readonly stats: BigInt64Array;
  /** Symlink targets by position. */
  readonly targets: readonly (readonly [number, Uint8Array])[];
  /** Texts of `ExtraAttributes` by position. */
  readonly extras?: readonly (readonly [number, string])[];
  /** Entries whose extended attributes could not be read, and why. */
  readonly unread?: readonly (readonly [number, string])[];
  /** Entries that were deleted or could not be read, with code and message. */
  readonly failures: readonly (readonly [number, string, string])[];
  /** The directory has more than the allowed names. None is returned. */
  readonly isTooLong?: boolean;
}
/** Names of one directory in memory at once, some 1 KB each until they are stored. Our choice. */
export const LISTING_ENTRIES_MAX = 1 << 15;
export const STAT_FIELDS = 7;
/** Linux allows 255. Longer names take the slow path. */
const NAME_BYTES_MAX = 1023;

/** The stream of a directory as it lies in its pack. */
export interface PackedStream {
  readonly packed: Uint8Array;
  readonly hash: Uint8Array;
  readonly compressionHeaderId: number;
  readonly originalLength: number;
  /**
   * Entries without extra attributes in the stream still have none if their inode did not change
   * since this time, in seconds. Minus infinity if unknown.
   */
  readonly plainBefore: number;
}

/** A directory whose files all match a stream. */
export interface SameFiles {
  /** Files and symbolic links. */
  readonly entries: number;
  /** Regular files among them, and their bytes. */
  readonly files: number;
  readonly bytes: number;
  /** Index keys of the contents that name the files' objects, one after the other. */
  readonly keys: Uint8Array;
  /** JSON of the stream's directories, and of its summary. */
  readonly directories: string;
  readonly summary: string;
}

/** A listing. With `same` it has only the directories, because the files match the stream. */
export interface DirectoryComparison {
  readonly listing: DirectoryListing;
  readonly same?: SameFiles;
}

/** Lists a directory. Sets only `isTooLong` for more than `entriesMax` names. Throws like `fs`. */
export function readDirectory(
  path: BytePath,
  entriesMax: number,
  rules?: ExtraRules,
): DirectoryListing {
  return inDirectory(path, (descriptor) => {
    const names = listNames(pathOf(descriptor, path));
    if (names.length > entriesMax) return { ...NO_ENTRIES, isTooLong: true };
    return lookAtAll({ descriptor, rules }, path, names);
  });
}

export const NO_ENTRIES: DirectoryListing = {
  names: [],
  stats: new BigInt64Array(0),
  targets: [],
  failures: [],
};

/** All reads use the opened directory, even if its path changes meanwhile. */
function inDirectory<T>(path: BytePath, ask: (descriptor: number) => T): T {
  const descriptor = openDirectly(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    return ask(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/** Status of these names: bytes, each with a zero behind it. Returns none of the names. */
export function lookAtNames(
  path: BytePath,
  names: Uint8Array,
  rules?: ExtraRules,
): DirectoryListing {
  return inDirectory(path, (descriptor) => lookAtNamesIn({ descriptor, rules }, path, names));
}

/** Like {@link lookAtNames}, for an open directory. */
export function lookAtNamesIn(
  place: ExtraPlace,
  path: BytePath,
  names: Uint8Array,
): DirectoryListing {
  const list: Uint8Array[] = [];
  for (let at = 0; at < names.length;) {
    const end = names.indexOf(0, at);
    list.push(names.subarray(at, end));
    at = end + 1;
  }
  return { ...lookAtAll(place, path, list), names: [] };
}

export function onlyDirectories({ names, stats, extras = [] }: DirectoryListing): DirectoryListing {
  const isDirectory = (_name: unknown, i: number): boolean =>
    (Number(stats[i * STAT_FIELDS]) & constants.S_IFMT) === constants.S_IFDIR;
  const positions = names.flatMap((name, i) => (isDirectory(name, i) ? [i] : []));
  const kept = new BigInt64Array(positions.length * STAT_FIELDS);
  positions.forEach((i, to) => {
    kept.set(stats.subarray(i * STAT_FIELDS, (i + 1) * STAT_FIELDS), to * STAT_FIELDS);
  });
  const keptNames = positions.map((i) => names[i] as string);
  const textOf = new Map(extras);
  const keptExtras = positions.flatMap((i, to) => {
    const text = textOf.get(i);
    return text === undefined ? [] : ([[to, text]] as const);
  });
  return { ...NO_ENTRIES, names: keptNames, stats: kept, extras: keptExtras };
}

function lookAtAll(
  place: ExtraPlace,
  path: BytePath,
  names: readonly (string | Uint8Array)[],
): DirectoryListing {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  const targets: [number, Uint8Array][] = [];
  const extras: [number, string][] = [];
  const unread: [number, string][] = [];
  const failures: [number, string, string][] = [];
  const { descriptor } = place;
  const here = pathOf(descriptor, path);
  const reader = posix().statusReader;
  const told = (error: unknown): string =>
    messageOf(error).replaceAll(shownPath(here), () => shownPath(path));
  names.forEach((name, i) => {
    const at = joinPath(here, name);
    try {
      const bytes = withZero(name);
      const status = lookAtOne(reader, descriptor, bytes) ?? statusBy(at);
      setStatus(stats, i, status);
      if ((status.mode & constants.S_IFMT) === constants.S_IFLNK) {
        targets.push([i, readlinkSync(fsPath(at), { encoding: 'buffer' })]);
      }
      try {
        const extra = readExtra(place, bytes, status);
        if (extra !== undefined) extras.push([i, extra]);
      } catch (error) {
        unread.push([i, told(error)]);
      }
    } catch (error) {
      failures.push([i, toldCode(error), told(error)]);
    }
  });
  return { names, stats, targets, extras, unread, failures };
}

const nameBuffer = Buffer.alloc(NAME_BYTES_MAX + 1);

/** The name with a zero behind it; valid until the next call. */
function withZero(name: string | Uint8Array): Uint8Array {
  const length = typeof name === 'string' ? Buffer.byteLength(name) : name.length;
  const bytes = length > NAME_BYTES_MAX ? Buffer.alloc(length + 1) : nameBuffer;
  if (typeof name === 'string') bytes.write(name);
  else bytes.set(name);
  bytes[length] = 0;
  return bytes.subarray(0, length + 1);
}

/** Undefined without a reader, or if the name is too long. */
const lookAtOne = (
  reader: StatusReader | undefined,
  descriptor: number,
  name: Uint8Array,
): FileStatus | undefined =>
  name.length > NAME_BYTES_MAX + 1 ? undefined : reader?.look(descriptor, name);

/** Throws like `fs`. */
function statusBy(path: BytePath): FileStatus {
  const stat: BigIntStats = lstatSync(fsPath(path), { bigint: true });
  const seconds = floorSeconds(stat.mtimeNs);
  return {
    mode: Number(stat.mode),
    sizeBytes: Number(stat.size),
    seconds: Number(seconds),
    nanoseconds: Number(stat.mtimeNs - seconds * SECOND_NS),
    changedSeconds: Number(floorSeconds(stat.ctimeNs)),
    uid: Number(stat.uid),
    gid: Number(stat.gid),
    device: stat.dev,
    links: Number(stat.nlink),
    inode: stat.ino,
  };
}

const floorSeconds = (ns: bigint): bigint => ns / SECOND_NS - (ns % SECOND_NS < 0n ? 1n : 0n);

function setStatus(stats: BigInt64Array, i: number, status: FileStatus): void {
  let at = i * STAT_FIELDS;
  stats[at++] = BigInt(status.mode);
  stats[at++] = BigInt(status.sizeBytes);
  stats[at++] = BigInt(status.seconds);
  stats[at++] = BigInt(status.nanoseconds);
  stats[at++] = BigInt(status.uid);
  stats[at++] = BigInt(status.gid);
  stats[at] = status.device;
}

/** Names as strings; bytes if a name is not UTF-8. */
function listNames(path: BytePath): (string | Uint8Array)[] {
  const names = readdirSync(fsPath(path));
  if (!names.some((name) => name.includes('\ufffd'))) return names;
  const raw = readdirSync(fsPath(path), { encoding: 'buffer' });
  return raw.map((name) =>
    isAscii(name) || isUtf8(name) ? name.toString() : Uint8Array.from(name),
  );
}
