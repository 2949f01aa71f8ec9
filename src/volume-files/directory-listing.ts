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
import { openDirectly, pathOf } from './open-directly.ts';

/** A directory listing: names as they are on disk, attributes in one array of 64-bit numbers. */
export interface DirectoryListing {
  /** Strings, or bytes where a name is not UTF-8. */
  readonly names: readonly (string | Uint8Array)[];
  /** {@link STAT_FIELDS} numbers for each name: mode, size, mtime in ns, uid, gid, device. */
  readonly stats: BigInt64Array;
  /** Symlink targets by position. */
  readonly targets: readonly (readonly [number, Uint8Array])[];
  /** Entries that went away or could not be looked at. */
  readonly failures: readonly (readonly [number, string, string])[];
  /** There are more names than were asked for at most, and none is given. */
  readonly isTooLong?: boolean;
}
/** Names of one directory that are held in memory at once, some 1 KB each until they are stored. Our choice. */
export const LISTING_ENTRIES_MAX = 1 << 15;
export const STAT_FIELDS = 6;
/** Linux allows 255; what is longer is looked at otherwise. */
const NAME_BYTES_MAX = 1023;

/** The stream of a directory as it lies in its pack. */
export interface PackedStream {
  readonly packed: Uint8Array;
  readonly hash: Uint8Array;
  readonly compressionHeaderId: number;
  readonly originalLength: number;
}

/** A directory whose files are all as a stream says that they were. */
export interface SameFiles {
  /** Files and symbolic links. */
  readonly entries: number;
  /** Regular files among them, and their bytes. */
  readonly files: number;
  readonly bytes: number;
  /** Keys of the contents that name their objects, one after the other, as indexes hold them. */
  readonly keys: Uint8Array;
  /** JSON of the stream's directories, and of its summary. */
  readonly directories: string;
  readonly summary: string;
}

/** A listing; with `same` only its directories, since the files are as the stream says. */
export interface DirectoryComparison {
  readonly listing: DirectoryListing;
  readonly same?: SameFiles;
}

/** With more than `entriesMax` names, it only says so. Throws what the system says of the directory itself. */
export function readDirectory(path: BytePath, entriesMax: number): DirectoryListing {
  return inDirectory(path, (descriptor) => {
    const names = listNames(pathOf(descriptor, path));
    if (names.length > entriesMax) {
      const none = { names: [], stats: new BigInt64Array(0), targets: [], failures: [] };
      return { ...none, isTooLong: true };
    }
    return lookAtAll(descriptor, path, names);
  });
}

/** What becomes of the path meanwhile, all is asked of the one directory that was opened. */
function inDirectory<T>(path: BytePath, ask: (descriptor: number) => T): T {
  const descriptor = openDirectly(path, constants.O_RDONLY | constants.O_DIRECTORY);
  try {
    return ask(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/** What `lstat` says of these names: bytes, with a zero behind each. The caller knows the names, and gets none. */
export function lookAtNames(path: BytePath, names: Uint8Array): DirectoryListing {
  return inDirectory(path, (descriptor) => lookAtNamesIn(descriptor, path, names));
}

/** The same for a directory that is open. */
export function lookAtNamesIn(
  descriptor: number,
  path: BytePath,
  names: Uint8Array,
): DirectoryListing {
  const list: Uint8Array[] = [];
  for (let at = 0; at < names.length;) {
    const end = names.indexOf(0, at);
    list.push(names.subarray(at, end));
    at = end + 1;
  }
  return { ...lookAtAll(descriptor, path, list), names: [] };
}

export function onlyDirectories({ names, stats }: DirectoryListing): DirectoryListing {
  const isDirectory = (_name: unknown, i: number): boolean =>
    (Number(stats[i * STAT_FIELDS]) & constants.S_IFMT) === constants.S_IFDIR;
  const positions = names.flatMap((name, i) => (isDirectory(name, i) ? [i] : []));
  const kept = new BigInt64Array(positions.length * STAT_FIELDS);
  positions.forEach((i, to) => {
    kept.set(stats.subarray(i * STAT_FIELDS, (i + 1) * STAT_FIELDS), to * STAT_FIELDS);
  });
  const keptNames = positions.map((i) => names[i] as string);
  return { names: keptNames, stats: kept, targets: [], failures: [] };
}

function lookAtAll(
  descriptor: number,
  path: BytePath,
  names: readonly (string | Uint8Array)[],
): DirectoryListing {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  const targets: [number, Uint8Array][] = [];
  const failures: [number, string, string][] = [];
  const here = pathOf(descriptor, path);
  const reader = posix().statusReader;
  names.forEach((name, i) => {
    const at = joinPath(here, name);
    try {
      const mode = setStatus(stats, i, reader && statusOf(reader, descriptor, name), at);
      if ((mode & constants.S_IFMT) === constants.S_IFLNK) {
        targets.push([i, readlinkSync(fsPath(at), { encoding: 'buffer' })]);
      }
    } catch (error) {
      failures.push([
        i,
        toldCode(error),
        messageOf(error).replaceAll(shownPath(here), () => shownPath(path)),
      ]);
    }
  });
  return { names, stats, targets, failures };
}

const nameBuffer = Buffer.alloc(NAME_BYTES_MAX + 1);

function statusOf(
  reader: StatusReader,
  descriptor: number,
  name: string | Uint8Array,
): FileStatus | undefined {
  const length = typeof name === 'string' ? Buffer.byteLength(name) : name.length;
  if (length > NAME_BYTES_MAX) return undefined;
  if (typeof name === 'string') nameBuffer.write(name);
  else nameBuffer.set(name);
  nameBuffer[length] = 0;
  return reader.look(descriptor, nameBuffer);
}

/** Returns type and permission bits. Throws what the system says where it has no status yet. */
function setStatus(
  stats: BigInt64Array,
  i: number,
  status: FileStatus | undefined,
  path: BytePath,
): number {
  let at = i * STAT_FIELDS;
  if (!status) {
    const stat: BigIntStats = lstatSync(fsPath(path), { bigint: true });
    stats.set([stat.mode, stat.size, stat.mtimeNs, stat.uid, stat.gid, stat.dev], at);
    return Number(stat.mode);
  }
  const { mode } = status;
  stats[at++] = BigInt(mode);
  stats[at++] = BigInt(status.sizeBytes);
  stats[at++] = BigInt(status.seconds) * SECOND_NS + BigInt(status.nanoseconds);
  stats[at++] = BigInt(status.uid);
  stats[at++] = BigInt(status.gid);
  stats[at] = status.device;
  return mode;
}

/** Names as strings, and as bytes where they are not UTF-8. */
function listNames(path: BytePath): (string | Uint8Array)[] {
  const names = readdirSync(fsPath(path));
  if (!names.some((name) => name.includes('\ufffd'))) return names;
  const raw = readdirSync(fsPath(path), { encoding: 'buffer' });
  return raw.map((name) =>
    isAscii(name) || isUtf8(name) ? name.toString() : Uint8Array.from(name),
  );
}
