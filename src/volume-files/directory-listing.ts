import { isAscii, isUtf8 } from 'node:buffer';
import { constants, lstatSync, readdirSync, readlinkSync } from 'node:fs';
import { joinPath, messageOf } from '../base/index.ts';
import { type BytePath, fsPath, toldCode } from './byte-path.ts';

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
  const names = listNames(path);
  if (names.length > entriesMax) {
    const none = { names: [], stats: new BigInt64Array(0), targets: [], failures: [] };
    return { ...none, isTooLong: true };
  }
  return lookAtAll(path, names);
}

/** What `lstat` says of these names: bytes, with a zero behind each. The caller knows the names, and gets none. */
export function lookAtNames(path: BytePath, names: Uint8Array): DirectoryListing {
  const list: Uint8Array[] = [];
  for (let at = 0; at < names.length;) {
    const end = names.indexOf(0, at);
    list.push(names.subarray(at, end));
    at = end + 1;
  }
  return { ...lookAtAll(path, list), names: [] };
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

function lookAtAll(path: BytePath, names: readonly (string | Uint8Array)[]): DirectoryListing {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  const targets: [number, Uint8Array][] = [];
  const failures: [number, string, string][] = [];
  names.forEach((name, i) => {
    const full = joinPath(path, name);
    try {
      const stat = lstatSync(fsPath(full), { bigint: true });
      const fields = [stat.mode, stat.size, stat.mtimeNs, stat.uid, stat.gid, stat.dev];
      stats.set(fields, i * STAT_FIELDS);
      if (stat.isSymbolicLink()) {
        targets.push([i, readlinkSync(fsPath(full), { encoding: 'buffer' })]);
      }
    } catch (error) {
      failures.push([i, toldCode(error), messageOf(error)]);
    }
  });
  return { names, stats, targets, failures };
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
