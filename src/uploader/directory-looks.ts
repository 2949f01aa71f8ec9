import { statfs } from 'node:fs/promises';
import {
  CodedError,
  messageOf,
  type Nanoseconds,
  SECOND_NS,
  Stopwatch,
  systemCode,
} from '../base/index.ts';
import {
  type ThreadPool,
  type DirectoryComparison,
  type DirectoryListing,
  LISTING_ENTRIES_MAX,
  type ExtraRules,
  NO_ENTRIES,
  type PackedStream,
  type SameFiles,
} from '../volume-files/index.ts';
import { hashOf, type ObjectId, parseObjectId, type Repository } from '../repository/index.ts';
import {
  type DirectoryEntry,
  type DirectorySummary,
  parseEntry,
  parseSummary,
  type PolicyTree,
} from '../snapshot/index.ts';
import { CACHE_TAG_NAME } from './directory-rules.ts';
import { hasMoreNames } from './long-listing.ts';
import { plainBeforeOf, tellsChanges } from './previous-entries.ts';
import type { Visit } from './visit.ts';

/** A directory whose files are as in the previous snapshot, and what that one holds of it. */
export interface KeptDirectory {
  readonly same: SameFiles;
  readonly id: ObjectId;
  /** Start of that snapshot. */
  readonly startNs: Nanoseconds;
  readonly recorded: string;
  readonly summary: DirectorySummary;
  readonly directories: readonly DirectoryEntry[];
}

/** Directories of a tree that threads look at before their turn. Our choice. */
const AHEAD_MAX = 32;
/**
 * A look is repeated when its turn comes later than this: the directory before it may have taken
 * hours, and names of then would be missed or asked for in vain. Our choice.
 */
const AHEAD_NS_MAX = 30n * SECOND_NS;

export interface DirectoryLooksOptions {
  readonly repository: Repository;
  readonly policies: PolicyTree;
  readonly signal: AbortSignal;
  /** Names of one directory held in memory at once; by default {@link LISTING_ENTRIES_MAX}. */
  readonly listingEntriesMax?: number | undefined;
}

/**
 * A directory that takes more is counted before it is listed: reading millions of names at once
 * takes hundreds of MB. Below it, no usual file system holds many more than
 * {@link LISTING_ENTRIES_MAX}.
 */
const COUNTED_ABOVE_BYTES = 1 << 20;
/**
 * File systems that tell the number of entries as a directory's size, as statfs names them: ZFS,
 * CephFS, and FUSE, which CephFS has a client for. Counting is not free (5 ms for 3000 names on
 * ext4), asking for this is.
 */
const COUNTING_FILE_SYSTEMS: readonly number[] = [0x2f_c1_2f_c1, 0x00_c3_64_00, 0x65_73_55_46];

/**
 * Whether a directory of this size must be counted before it is listed. `fileSystemType` is as
 * statfs tells it.
 */
export async function mustCount(
  sizeBytes: number,
  entriesMax: number,
  fileSystemType: () => Promise<number>,
): Promise<boolean> {
  if (sizeBytes > COUNTED_ABOVE_BYTES) return true;
  return sizeBytes > entriesMax && COUNTING_FILE_SYSTEMS.includes(await fileSystemType());
}

/** A look that was started before its turn; the watch runs once it is done. */
interface Ahead {
  readonly comparison: Promise<DirectoryComparison>;
  sinceDone: Stopwatch | undefined;
}

const TOO_LONG: DirectoryListing = { ...NO_ENTRIES, isTooLong: true };

/** What directories of the source hold, and which of them are as the previous snapshot has them. */
export class DirectoryLooks {
  readonly #options: DirectoryLooksOptions;
  readonly #pool: ThreadPool;
  /** Looks that were started before their turn, by path. */
  readonly #ahead = new Map<string | Uint8Array, Ahead>();
  readonly #seen = new WeakSet<Visit>();

  readonly #entriesMax: number;
  /** Set before the first look. */
  rules: ExtraRules | undefined;

  constructor(options: DirectoryLooksOptions, pool: ThreadPool) {
    this.#entriesMax = options.listingEntriesMax ?? LISTING_ENTRIES_MAX;
    this.#options = options;
    this.#pool = pool;
  }

  /** Starts a look that will be asked for soon, while few are under way. */
  lookAhead(visit: Visit): void {
    if (this.#ahead.size >= AHEAD_MAX || this.#seen.has(visit) || this.#options.signal.aborted)
      return;
    this.#seen.add(visit);
    const ahead: Ahead = { comparison: this.#start(visit), sinceDone: undefined };
    const done = (): void => {
      ahead.sinceDone = new Stopwatch(this.#options.repository.clock);
    };
    // A failure is met when its turn comes.
    ahead.comparison.then(done, done);
    this.#ahead.set(visit.path, ahead);
  }

  /**
   * The listing, with a comparison where the directory may be taken over as it was. Throws
   * `UNREADABLE_DIRECTORY`.
   */
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

  /**
   * The directory of the newest snapshot, where no rule or policy could make entries count
   * differently.
   */
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
      // It is loaded again when the directory is compared, and that warns.
      return undefined;
    }
  }

  /**
   * What is kept of a directory whose files did not change; undefined when its contents are no
   * longer all there.
   */
  keep(visit: Visit, same: SameFiles): KeptDirectory | undefined {
    const { contents } = this.#options.repository;
    const [previous] = visit.previous;
    if (!previous) return undefined;
    const { id, startNs, recorded } = previous;
    // Its own content may be marked deleted, as those of its files: writing it anew brings it back.
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
      // It is loaded again when the directory is compared, and that warns.
      return undefined;
    }
    const isClean =
      summary?.incomplete === undefined &&
      summary?.numFailed === 0 &&
      (summary.numIgnoredErrors ?? 0) === 0;
    // Something below may have changed without another time: every entry is looked at by itself.
    if (summary && !tellsChanges(summary.maxTimeNs, startNs)) return undefined;
    if (!summary || !isClean || directories.some(({ type }) => type !== 'd')) return undefined;
    return { same, id, startNs, recorded, summary, directories };
  }
}

/** System errors that concern this process or machine, and not the directory or file. */
const OWN_TROUBLE = ['EMFILE', 'ENFILE', 'ENOMEM', 'ENOBUFS', 'ENOSPC'];

export const isOwnTrouble = (code: string): boolean => OWN_TROUBLE.includes(code);

/**
 * Whether the system said this of what it was asked to read (and not of this process or machine).
 */
export function isOfTheSource(error: unknown): boolean {
  const code = systemCode(error);
  return code !== undefined && !isOwnTrouble(code);
}

/**
 * Only what the system says of the directory makes it unreadable; a thread that died or a bug does
 * not.
 */
export function asUnreadable(error: unknown): unknown {
  if (!isOfTheSource(error)) return error;
  return new CodedError('UNREADABLE_DIRECTORY', messageOf(error), { cause: error });
}
