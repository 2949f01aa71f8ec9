import { decodeGoUtf8, type Nanoseconds, SECOND_NS } from '../base/index.ts';
import { type DirectoryListing, STAT_FIELDS } from '../volume-files/index.ts';

/** `node`: a FIFO or a device node. */
export type SourceType = 'f' | 'd' | 's' | 'node' | 'other';

/** One name of the source, with what `lstat` said. */
export interface SourceEntry {
  /** As it will be stored: UTF-8, invalid bytes replaced as Kopia does. */
  readonly name: string;
  /** As it is on disk. */
  readonly rawName: string | Uint8Array;
  readonly type: SourceType;
  /** 0o7777. */
  readonly mode: number;
  readonly sizeBytes: number;
  readonly mtimeNs: Nanoseconds;
  readonly uid: number;
  readonly gid: number;
  readonly device: bigint;
  readonly target?: Uint8Array | undefined;
  /** As in a directory entry. */
  readonly extra?: string | undefined;
  /** The time was outside of the years of an entry. The nearest time of an entry stands for it. */
  readonly isTimeChanged?: boolean;
}

const TYPE_MASK = 0o170000;
const TYPES: Record<number, SourceType> = { 0o100000: 'f', 0o040000: 'd', 0o120000: 's' };

export interface SourceDirectory {
  /** Directories first, then the rest, each by the bytes of the name. */
  readonly entries: SourceEntry[];
  readonly failures: readonly { name: string; code: string; message: string }[];
  /** Names that are not UTF-8, as stored; each is warned about. */
  readonly renamed: readonly string[];
  /** Entries whose extended attributes could not be read. */
  readonly unread: readonly { name: string; message: string }[];
}

/**
 * Marks a byte that is not UTF-8, so that JSON gets the escape that Kopia writes and not the
 * character.
 */
const INVALID_BYTE = '\ud800';

/** The times that RFC 3339 can write: the years 0 to 9999. */
const TIME_MIN_NS = -62_167_219_200n * SECOND_NS;
const TIME_MAX_NS = 253_402_300_799n * SECOND_NS;

/** One entry, from its {@link STAT_FIELDS}. */
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

/**
 * Decodes what a thread listed. Two names that become one after replacement: the second gets a
 * suffix.
 */
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

/** By raw bytes; most directories are ASCII, where string order is the same. */
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
 * Whether a listing told a name again: a file system may do so where it was removed and made anew
 * meanwhile, NFS where its server's places moved. In order, the same names follow each other.
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

/** A name as readers of the snapshot see it. */
export const plainName = (name: string): string => name.replaceAll(INVALID_BYTE, '\ufffd');

/** Gives suffixes where names are the same once replaced, and returns the replaced names. */
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

/**
 * The first free of `name~2`, `name~3`, ...; each is tried once, however many names are the same.
 */
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
