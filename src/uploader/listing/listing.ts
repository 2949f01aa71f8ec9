import { decodeGoUtf8, type Nanoseconds, SECOND_NS } from '../../base/index.ts';
import { type DirectoryListing, STAT_FIELDS } from '../../volume-files/index.ts';

/** `node`: a FIFO or a device node. */
export type SourceType = 'f' | 'd' | 's' | 'node' | 'other';

/** A name of the source, with its status from `lstat`. */
export interface SourceEntry {
  /** The stored name: UTF-8, with invalid bytes replaced as in Kopia. */
  readonly name: string;
  /** The name on disk. */
  readonly rawName: string | Uint8Array;
  readonly type: SourceType;
  /** Bits of 0o7777. */
  readonly mode: number;
  readonly sizeBytes: number;
  readonly mtimeNs: Nanoseconds;
  readonly uid: number;
  readonly gid: number;
  readonly device: bigint;
  readonly target?: Uint8Array | undefined;
  /** In the form of a directory entry. */
  readonly extra?: string | undefined;
  /** The time was outside the range of an entry, and was replaced by the nearest valid time. */
  readonly isTimeChanged?: boolean;
}

const TYPE_MASK = 0o170000;
const TYPES: Record<number, SourceType> = { 0o100000: 'f', 0o040000: 'd', 0o120000: 's' };

export interface SourceDirectory {
  /** Directories first, then the rest, each by the bytes of the name. */
  readonly entries: SourceEntry[];
  readonly failures: readonly { name: string; code: string; message: string }[];
  /** Stored forms of names that are not UTF-8. Each causes a warning. */
  readonly renamed: readonly string[];
  /** Entries whose extended attributes could not be read. */
  readonly unread: readonly { name: string; message: string }[];
}

/** Marks a byte that is not UTF-8. JSON then gets Kopia's escape, not the character. */
const INVALID_BYTE = '\ud800';

/** The range of RFC 3339: years 0 to 9999. */
const TIME_MIN_NS = -62_167_219_200n * SECOND_NS;
const TIME_MAX_NS = 253_402_300_799n * SECOND_NS;

/** An entry, from its {@link STAT_FIELDS}. */
export function entryAt(
  rawName: string | Uint8Array,
  field: (k: number) => bigint,
  target: Uint8Array | undefined,
  extra?: string,
): SourceEntry {
  const mode = Number(field(0));
  const mtimeNs = field(2) * SECOND_NS + field(3);
  const isTimeChanged = mtimeNs < TIME_MIN_NS || mtimeNs > TIME_MAX_NS;
  return {
    name: storedName(rawName),
    rawName,
    type: TYPES[mode & TYPE_MASK] ?? (extra?.includes('"node":') === true ? 'node' : 'other'),
    mode: mode & 0o7777,
    sizeBytes: Number(field(1)),
    mtimeNs: mtimeNs < TIME_MIN_NS ? TIME_MIN_NS : mtimeNs > TIME_MAX_NS ? TIME_MAX_NS : mtimeNs,
    uid: Number(field(4)),
    gid: Number(field(5)),
    device: field(6),
    target,
    extra,
    ...(isTimeChanged && { isTimeChanged }),
  };
}

/** Decodes a thread's listing. If replaced names are equal, the second gets a suffix. */
export function decodeListing(listing: DirectoryListing): SourceDirectory {
  const { names, stats, targets, failures } = listing;
  const targetOf = new Map(targets);
  const extraOf = new Map(listing.extras);
  const failed = new Set(failures.map(([position]) => position));
  const entries: SourceEntry[] = [];
  names.forEach((rawName, i) => {
    if (failed.has(i)) return;
    const field = (k: number): bigint => stats[i * STAT_FIELDS + k] as bigint;
    entries.push(entryAt(rawName, field, targetOf.get(i), extraOf.get(i)));
  });
  sortEntries(entries);
  dropRepeated(entries);
  const renamed = entries.every(({ rawName }) => typeof rawName === 'string')
    ? []
    : makeUnique(entries);
  return {
    entries,
    failures: failures.map(([position, code, message]) => ({
      name: storedName(names[position] ?? ''),
      code,
      message,
    })),
    renamed,
    unread: (listing.unread ?? []).map(([position, message]) => ({
      name: storedName(names[position] ?? ''),
      message,
    })),
  };
}

export function storedName(raw: string | Uint8Array): string {
  return typeof raw === 'string' ? raw : decodeGoUtf8(raw, INVALID_BYTE);
}

/** Sorts by raw bytes. Most directories are ASCII, for which string order is the same. */
function sortEntries(entries: SourceEntry[]): void {
  const keyOf = ({ rawName }: SourceEntry): Buffer => Buffer.from(rawName as string);
  const keys = new Map<SourceEntry, Buffer>();
  const ascii = entries.every(
    ({ rawName }) => typeof rawName === 'string' && /^[\u0020-\u007e]*$/.test(rawName),
  );
  if (!ascii) for (const entry of entries) keys.set(entry, keyOf(entry));
  entries.sort((a, b) => {
    if ((a.type === 'd') !== (b.type === 'd')) return a.type === 'd' ? -1 : 1;
    if (ascii) return a.rawName < b.rawName ? -1 : 1;
    return Buffer.compare(keys.get(a) as Buffer, keys.get(b) as Buffer);
  });
}

/**
 * Whether a sorted listing has a name twice. A file system may list a name again if it was removed
 * and created meanwhile; NFS may when positions on its server have moved.
 */
export function isRepeated({ rawName }: SourceEntry, before: SourceEntry | undefined): boolean {
  const last = before?.rawName;
  if (typeof rawName === 'string' || typeof last === 'string') return rawName === last;
  return last !== undefined && Buffer.compare(rawName, last) === 0;
}

function dropRepeated(entries: SourceEntry[]): void {
  let kept = 0;
  for (const entry of entries) {
    if (!isRepeated(entry, entries[kept - 1])) entries[kept++] = entry;
  }
  entries.length = kept;
}

/** The name for readers of the snapshot. */
export const plainName = (name: string): string => name.replaceAll(INVALID_BYTE, '\ufffd');

/** Adds suffixes to names that are equal after replacement. Returns the replaced names. */
function makeUnique(entries: SourceEntry[]): string[] {
  const counts = new Map<string, number>();
  const count = (name: string, by: number): number => {
    const sum = (counts.get(name) ?? 0) + by;
    counts.set(name, sum);
    return sum;
  };
  for (const { name } of entries) count(plainName(name), 1);
  const suffixes = new Suffixes((name) => (counts.get(name) ?? 0) > 0);
  return entries.flatMap((entry, i) => {
    if (typeof entry.rawName === 'string') return [];
    const before = plainName(entry.name);
    if ((counts.get(before) ?? 0) <= 1) return [before];
    const name = suffixes.next(entry.name);
    count(before, -1);
    count(plainName(name), 1);
    entries[i] = { ...entry, name };
    return [plainName(name)];
  });
}

/** The first free of `name~2`, `name~3`, ... Each is tried once, even for many equal names. */
export class Suffixes {
  readonly #isTaken: (plain: string) => boolean;
  readonly #last = new Map<string, number>();

  constructor(isTaken: (plain: string) => boolean) {
    this.#isTaken = isTaken;
  }

  next(name: string): string {
    const plain = plainName(name);
    for (let i = (this.#last.get(plain) ?? 1) + 1; ; i++) {
      const candidate = `${name}~${i}`;
      if (this.#isTaken(plainName(candidate))) continue;
      this.#last.set(plain, i);
      return candidate;
    }
  }
}
