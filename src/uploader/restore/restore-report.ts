import {
  CodedError,
  codeOf,
  isCode,
  type Logger,
  lookup,
  messageOf,
  printable,
} from '../../base/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { type KeptExtras, NOT_SET, type NotSet } from '../../volume-files/index.ts';
import type { DiskName } from './restore-names.ts';
import type { Selection } from './selection.ts';
import type { TargetDirectory } from './target-directory.ts';

export type Overwrite = 'if-different' | 'always' | 'never';

/** Counts entries without all of their attributes, and each missing attribute. */
export interface AttributesNotSet {
  entries: number;
  owner: number;
  mode: number;
  time: number;
  /** Includes access lists and capabilities. */
  xattrs: number;
  /** Names of hard-linked files that became separate files. */
  link: number;
  /** FIFOs and device nodes that were not made. */
  node: number;
  /** The first entries, with a word for each missing attribute. */
  readonly first: { readonly path: string; readonly what: string }[];
}

/** Number of named entries. */
const NAMED_MAX = 10;

const WORDS = {
  owner: 'owner',
  mode: 'mode',
  time: 'time',
  xattrs: 'extended attributes',
  link: 'hard link',
  node: 'FIFO or device',
} as const;
const KINDS = Object.keys(WORDS) as (keyof typeof WORDS)[];

/** Text for users: `the owner of 3, the mode of 1`. */
export const describeNotSet = (notSet: AttributesNotSet): string =>
  KINDS.flatMap((kind) => (notSet[kind] > 0 ? [`the ${WORDS[kind]} of ${notSet[kind]}`] : [])).join(
    ', ',
  );

export interface RestoreCounters {
  files: number;
  directories: number;
  symlinks: number;
  /** Skipped entries: same size and time, or overwriting is off. */
  skipped: number;
  bytes: number;
  /** Part of `bytes`: bytes of skipped files. */
  bytesSkipped: number;
  errors: number;
  attributesNotSet: AttributesNotSet;
  /** Files and bytes found so far; grows while directories are read. */
  filesFound: number;
  bytesFound: number;
  /** All is written, and the flush is running. */
  isFlushing: boolean;
}

export const newRestoreCounters = (): RestoreCounters => ({
  files: 0,
  directories: 0,
  symlinks: 0,
  skipped: 0,
  bytes: 0,
  bytesSkipped: 0,
  errors: 0,
  attributesNotSet: {
    entries: 0,
    owner: 0,
    mode: 0,
    time: 0,
    xattrs: 0,
    link: 0,
    node: 0,
    first: [],
  },
  filesFound: 0,
  bytesFound: 0,
  isFlushing: false,
});

/** Differences of a restore in place. */
export interface InPlaceEntries {
  /** Extended attributes that the snapshot lacks are removed. */
  readonly isExact: boolean;
  /** Checks that this is the locked directory. Throws `TARGET_CHANGED`. */
  assertRoot(directory: TargetDirectory): void;
  /** Changes the existing file to match the entry. Returns false if it must be written whole. */
  patch(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean>;
  /** Call it before a write of a whole file. Returns kept attributes. Throws `WRITE_LIMIT`. */
  beforeWhole(entry: DirectoryEntry): string | undefined;
  /** Called when a file or link is complete; `isNew` if it replaced nothing. */
  onWhole(entry: DirectoryEntry, isNew: boolean): void;
  /** Changes an old file if a second file does not fit. False: the entry must be written whole. */
  patchWithoutRoom(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean>;
  /** Called if a name of a hard-linked file is already a link. */
  onSameLink(): void;
  /** Opens a subdirectory. Creates it if it is missing, or if another entry has its name. */
  enter(parent: TargetDirectory, entry: DirectoryEntry): Promise<TargetDirectory>;
  /** Removes a directory in the way. Throws `TARGET_IN_THE_WAY` if something in it must stay. */
  removeDirectory(parent: TargetDirectory, name: DiskName): Promise<void>;
}

export interface RestoreOptions {
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly counters?: RestoreCounters;
  readonly overwrite?: Overwrite;
  readonly sparse?: boolean;
  /**
   * For a raw volume: refuses a device that is mounted, or part of another device. An image stays
   * until its replacement is whole. Movers do not set it: a volume of a cluster must keep its file.
   */
  readonly ownTarget?: boolean;
  /** Name of an entry in a tree's root that is skipped, with its subtree. */
  readonly leaveOut?: string;
  /** Restores only this part of a tree. */
  readonly selection?: Selection;
  /**
   * Compares existing entries with the snapshot instead of overwriting them. Called once with the
   * report of the restore. The report's signal also aborts all work if the target is full.
   */
  readonly inPlace?: (report: RestoreReport) => InPlaceEntries;
  /** Extended attributes and hard links to restore; all by default. */
  readonly extras?: KeptExtras;
  /** Makes device nodes. Otherwise they are skipped and counted. */
  readonly devices?: boolean;
  /** The owner of all restored entries, instead of the recorded owners. */
  readonly owner?: { readonly uid: number; readonly gid: number };
}

/** Options of one restore. `inPlace` is made for it, with its signal. */
export interface EntryOptions extends Omit<RestoreOptions, 'inPlace'> {
  readonly inPlace?: InPlaceEntries | undefined;
}

/** After these errors no write can succeed, so the restore ends. */
const HOPELESS = ['ENOSPC', 'WRITE_LIMIT'];
/** A part of a target may be read-only, such as a mount. The restore ends only if all of it is. */
const READ_ONLY = 'EROFS';
/** Codes of an entry's failure that become the code of the whole restore. */
const KEPT_CODES = ['DAMAGED_BLOB', 'STORAGE_FULL', 'WRITE_LIMIT'];
/** Failures that are logged; the others are counted. Our choice: a tree may have millions. */
const LOGGED_MAX = 1000;

/** Counts restored entries and failures. The first failure is thrown at the end. */
export class RestoreReport {
  readonly counters: RestoreCounters;
  /** For all work of the restore. Aborted by the caller, and if the target takes no more writes. */
  readonly signal: AbortSignal;
  readonly #options: RestoreOptions;
  readonly #hopeless = new AbortController();
  #firstError: { error: unknown; path: string } | undefined;
  /** Whether the whole target is read-only. Set when the target is opened. */
  isReadOnly: () => boolean = () => false;

  constructor(options: RestoreOptions) {
    this.#options = options;
    this.counters = options.counters ?? newRestoreCounters();
    this.signal = AbortSignal.any([options.signal, this.#hopeless.signal]);
  }

  /** After a cancel or a hopeless error, later failures are ignored. */
  fail(path: string, error: unknown): void {
    if (this.signal.aborted) return;
    const { logger } = this.#options;
    this.counters.errors++;
    this.#firstError ??= { error, path };
    const { errors } = this.counters;
    if (errors <= LOGGED_MAX) {
      logger.warn({ path, error: messageOf(error) }, 'an entry could not be restored');
    } else if (errors === LOGGED_MAX + 1) {
      logger.warn({}, 'more entries could not be restored; from here on they are only counted');
    }
    const code = codeOf(error) ?? '';
    if (!HOPELESS.includes(code) && !(code === READ_ONLY && this.isReadOnly())) return;
    this.#firstError = { error, path };
    this.#hopeless.abort();
  }

  /** Counts an entry that lacks attributes, because the system refused to set them. */
  noteNotSet(path: string, notSet: NotSet): void {
    if (notSet === 0) return;
    const { attributesNotSet: noted } = this.counters;
    const lacking = KINDS.filter((kind) => (notSet & NOT_SET[kind]) !== 0);
    noted.entries++;
    for (const kind of lacking) noted[kind]++;
    if (noted.first.length >= NAMED_MAX) return;
    const what = lacking.map((kind) => WORDS[kind]).join(', ');
    noted.first.push({ path, what });
    this.#options.logger.warn({ path, what }, 'attributes of an entry could not be set');
  }

  /**
   * Throws the abort reason, `DAMAGED_BLOB`, `STORAGE_FULL`, `TARGET_FULL`, `TARGET_UNUSABLE`,
   * `RESTORE_INCOMPLETE`.
   */
  throwIfFailed(): void {
    this.#options.signal.throwIfAborted();
    if (!this.#firstError) return;
    const { error, path } = this.#firstError;
    const more = this.counters.errors > 1 ? ` (and ${this.counters.errors - 1} more failed)` : '';
    const code = isCode(error, ...KEPT_CODES) ? error.code : codeFor(error);
    throw new CodedError(code, `cannot restore ${path}: ${describe(error)}${more}`, {
      cause: error,
    });
  }
}

const systemCodes: Record<string, string> = {
  ENOSPC: 'TARGET_FULL',
  EDQUOT: 'TARGET_FULL',
  EACCES: 'TARGET_UNUSABLE',
  EPERM: 'TARGET_UNUSABLE',
  EROFS: 'TARGET_UNUSABLE',
};

const codeFor = (error: unknown): string =>
  lookup(systemCodes, codeOf(error) ?? '') ?? 'RESTORE_INCOMPLETE';

/** System errors contain a path through /proc, which is useless to users. */
const describe = (error: unknown): string =>
  messageOf(error).replace(/, \w+ '\/proc\/self\/fd\/.*$/, '');

/** Pieces of an incomplete file are not at their real offsets, so it cannot be restored. */
export function incompleteSnapshot(what: 'volume' | 'file' | 'directory', why: string): CodedError {
  const text = `this snapshot holds only a part of the ${what}, because its backup did not finish (${printable(why)}): choose another one`;
  return new CodedError('SNAPSHOT_INCOMPLETE', text);
}
