import { statfs } from 'node:fs/promises';
import {
  CodedError,
  messageOf,
  type Nanoseconds,
  SECOND_NS,
  Stopwatch,
  systemCode,
} from '../../base/index.ts';
import {
  type ThreadPool,
  type DirectoryComparison,
  type DirectoryListing,
  LISTING_ENTRIES_MAX,
  type ExtraRules,
  NO_ENTRIES,
  type PackedStream,
  type SameFiles,
} from '../../volume-files/index.ts';
import { hashOf, type ObjectId, parseObjectId, type Repository } from '../../repository/index.ts';
import {
  type DirectoryEntry,
  type DirectorySummary,
  parseEntry,
  parseSummary,
  type PolicyTree,
} from '../../snapshot/index.ts';
import { CACHE_TAG_NAME } from './directory-rules.ts';
import { hasMoreNames } from '../long-directory/long-listing.ts';
import { plainBeforeOf, tellsChanges } from '../listing/previous-entries.ts';
import type { Visit } from './directory-visit.ts';

/** A directory whose files match the previous snapshot, with data of that snapshot. */
export interface KeptDirectory {
  readonly same: SameFiles;
  readonly id: ObjectId;
  /** Start of that snapshot. */
  readonly startNs: Nanoseconds;
  readonly recorded: string;
  readonly summary: DirectorySummary;
  readonly directories: readonly DirectoryEntry[];
}

/** Directories that threads list ahead. Our choice. */
const AHEAD_MAX = 32;
/**
 * Age after which a listing ahead is repeated. The directory before it may have taken hours, and
 * names may have changed. Our choice.
 */
const AHEAD_NS_MAX = 30n * SECOND_NS;

export interface DirectoryLooksOptions {
  readonly repository: Repository;
  readonly policies: PolicyTree;
  readonly signal: AbortSignal;
  /** Names of one directory in memory at once; by default {@link LISTING_ENTRIES_MAX}. */
  readonly listingEntriesMax?: number | undefined;
}

/**
 * A larger directory is counted before it is listed, because millions of names take hundreds of MB.
 * Usual file systems hold not many more than {@link LISTING_ENTRIES_MAX} names in a smaller one.
 */
const COUNTED_ABOVE_BYTES = 1 << 20;
/**
 * File systems whose directory size is the number of entries, by statfs type: ZFS, CephFS and FUSE.
 * CephFS has a FUSE client. Counting takes time (5 ms for 3000 names on ext4); this check does not.
 */
const COUNTING_FILE_SYSTEMS: readonly number[] = [0x2f_c1_2f_c1, 0x00_c3_64_00, 0x65_73_55_46];

/** Whether a directory must be counted before it is listed. `fileSystemType` is from statfs. */
export async function mustCount(
  sizeBytes: number,
  entriesMax: number,
  fileSystemType: () => Promise<number>,
): Promise<boolean> {
  if (sizeBytes > COUNTED_ABOVE_BYTES) return true;
  return sizeBytes > entriesMax && COUNTING_FILE_SYSTEMS.includes(await fileSystemType());
}

/** A listing that was started ahead. The stopwatch runs from its end. */
interface Ahead {
  readonly comparison: Promise<DirectoryComparison>;
  sinceDone: Stopwatch | undefined;
}

const TOO_LONG: DirectoryListing = { ...NO_ENTRIES, isTooLong: true };

/** Lists directories of the source, and compares them with the previous snapshot. */
export class DirectoryLooks {
  readonly #options: DirectoryLooksOptions;
  readonly #pool: ThreadPool;
  /** Listings that were started ahead, by path. */
  readonly #ahead = new Map<string | Uint8Array, Ahead>();
  readonly #seen = new WeakSet<Visit>();

  readonly #entriesMax: number;
  /** Set before the first listing. */
  rules: ExtraRules | undefined;

  constructor(options: DirectoryLooksOptions, pool: ThreadPool) {
    this.#entriesMax = options.listingEntriesMax ?? LISTING_ENTRIES_MAX;
    this.#options = options;
    this.#pool = pool;
  }

  /** Starts a listing that will soon be needed, unless many are running. */
  lookAhead(visit: Visit): void {
    if (this.#ahead.size >= AHEAD_MAX || this.#seen.has(visit) || this.#options.signal.aborted)
      return;
    this.#seen.add(visit);
    const ahead: Ahead = { comparison: this.#start(visit), sinceDone: undefined };
    const done = (): void => {
      ahead.sinceDone = new Stopwatch(this.#options.repository.clock);
    };
    // `look` handles a failure.
    ahead.comparison.then(done, done);
    this.#ahead.set(visit.path, ahead);
  }

  /** Lists, and compares if the directory may be unchanged. Throws `UNREADABLE_DIRECTORY`. */
  look(visit: Visit): Promise<DirectoryComparison> {
    const ahead = this.#ahead.get(visit.path);
    this.#ahead.delete(visit.path);
    const isOld = ahead?.sinceDone !== undefined && ahead.sinceDone.elapsedNs > AHEAD_NS_MAX;
    return ahead && !isOld ? ahead.comparison : this.#start(visit);
  }

  /** The listing alone. Throws `UNREADABLE_DIRECTORY`. */
  async list({ path }: Visit): Promise<DirectoryListing> {
    try {
      return await this.#pool.readDirectory(path, this.#entriesMax, this.rules);
    } catch (error) {
      throw asUnreadable(error);
    }
  }

  async #isTooLong({ path, attributes }: Visit): Promise<boolean> {
    const fileSystemType = async (): Promise<number> =>
      (await statfs(typeof path === 'string' ? path : Buffer.from(path))).type;
    try {
      if (!(await mustCount(attributes.sizeBytes, this.#entriesMax, fileSystemType))) return false;
      return await hasMoreNames(path, this.#entriesMax);
    } catch (error) {
      throw asUnreadable(error);
    }
  }

  async #start(visit: Visit): Promise<DirectoryComparison> {
    if (await this.#isTooLong(visit)) return { listing: TOO_LONG };
    const before = await this.#streamBefore(visit);
    if (!before) return { listing: await this.list(visit) };
    const special = [CACHE_TAG_NAME, ...visit.rules.dotIgnoreFiles];
    try {
      const { path } = visit;
      const [max, rules] = [this.#entriesMax, this.rules];
      return await this.#pool.compareDirectory(path, before, special, max, rules);
    } catch (error) {
      throw asUnreadable(error);
    }
  }

  /** The newest snapshot's directory; undefined if rules or policies may change the result. */
  async #streamBefore(visit: Visit): Promise<PackedStream | undefined> {
    const { policies, repository } = this.#options;
    const [newest] = visit.previous;
    const { rules } = visit;
    const isPlain = rules.isEmpty && rules.maxFileBytes === 0 && !rules.oneFileSystem;
    if (!newest || !isPlain || policies.definedAt(visit.relative)) return undefined;
    const { indirections, compressed, contentId } = parseObjectId(newest.id);
    const entry = repository.contents.find(contentId);
    if (indirections > 0 || compressed || !entry) return undefined;
    try {
      const packed = new Uint8Array(await repository.contents.getPacked(entry));
      const { compressionHeaderId, originalLength } = entry;
      const plainBefore = plainBeforeOf(newest, this.rules);
      const hash = hashOf(contentId);
      return { packed, hash, compressionHeaderId, originalLength, plainBefore };
    } catch {
      // The later comparison loads it again, and warns.
      return undefined;
    }
  }

  /** The reusable parts of a directory with unchanged files; undefined if contents are missing. */
  keep(visit: Visit, same: SameFiles): KeptDirectory | undefined {
    const { contents } = this.#options.repository;
    const [previous] = visit.previous;
    if (!previous) return undefined;
    const { id, startNs, recorded } = previous;
    // If the directory's own content is marked deleted, storing the directory again restores it.
    if (!contents.has(parseObjectId(id).contentId)) return undefined;
    if (!contents.hasAllCommitted(same.keys, same.keys.length / Math.max(1, same.entries))) {
      return undefined;
    }
    let directories: DirectoryEntry[];
    let summary: DirectorySummary | undefined;
    try {
      directories = (JSON.parse(same.directories) as unknown[]).map(parseEntry);
      summary = parseSummary(JSON.parse(same.summary));
    } catch {
      // The later comparison loads it again, and warns.
      return undefined;
    }
    const isClean =
      summary?.incomplete === undefined &&
      summary?.numFailed === 0 &&
      (summary.numIgnoredErrors ?? 0) === 0;
    // A recent change below may not show in a time, so every entry is checked.
    if (summary && !tellsChanges(summary.maxTimeNs, startNs)) return undefined;
    if (!summary || !isClean || directories.some(({ type }) => type !== 'd')) return undefined;
    return { same, id, startNs, recorded, summary, directories };
  }
}

/** System errors about this process or machine, not about the directory or file. */
const OWN_TROUBLE = ['EMFILE', 'ENFILE', 'ENOMEM', 'ENOBUFS', 'ENOSPC'];

export const isOwnTrouble = (code: string): boolean => OWN_TROUBLE.includes(code);

/** Whether a system error is about the file that was read, not about this process or machine. */
export function isOfTheSource(error: unknown): boolean {
  const code = systemCode(error);
  return code !== undefined && !isOwnTrouble(code);
}

/** Wraps system errors about the directory. Other errors pass through. */
export function asUnreadable(error: unknown): unknown {
  if (!isOfTheSource(error)) return error;
  return new CodedError('UNREADABLE_DIRECTORY', messageOf(error), { cause: error });
}
