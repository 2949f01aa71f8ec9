import {
  CodedError,
  codeOf,
  isCode,
  type Logger,
  lookup,
  messageOf,
  printable,
} from '../base/index.ts';
import type { DirectoryEntry } from '../snapshot/index.ts';
import { type KeptExtras, NOT_SET, type NotSet } from '../volume-files/index.ts';
import type { DiskName } from './restore-names.ts';
import type { Selection } from './selection.ts';
import type { TargetDirectory } from './target-directory.ts';

export type Overwrite = 'if-different' | 'always' | 'never';

/**
 * Entries that are restored without all of their attributes: how many lack any, and how many lack
 * each.
 */
export interface AttributesNotSet {
  entries: number;
  owner: number;
  mode: number;
  time: number;
  /** Extended attributes, access lists and capabilities among them. */
  xattrs: number;
  /** Names of hard-linked files that became files of their own. */
  link: number;
  /** FIFOs and device nodes that were not made. */
  node: number;
  /** The first of them, with a word for each attribute that is not set. */
  readonly first: { readonly path: string; readonly what: string }[];
}

/** Entries that are named. */
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

/** For a person: `the owner of 3, the mode of 1`. */
export const describeNotSet = (notSet: AttributesNotSet): string =>
  KINDS.flatMap((kind) => (notSet[kind] > 0 ? [`the ${WORDS[kind]} of ${notSet[kind]}`] : [])).join(
    ', ',
  );

export interface RestoreCounters {
  files: number;
  directories: number;
  symlinks: number;
  /** Left as they were: same size and time, or not to be overwritten. */
  skipped: number;
  bytes: number;
  /** Of them, bytes of files that were left as they were. */
  bytesSkipped: number;
  errors: number;
  attributesNotSet: AttributesNotSet;
  /** Files and bytes known so far; grows while directories are read. */
  filesFound: number;
  bytesFound: number;
  /** All is written, and the disk is being waited for. */
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

/** What a restore in place does otherwise. */
export interface InPlaceEntries {
  /** Extended attributes that the snapshot lacks are removed. */
  readonly isExact: boolean;
  /** Makes sure that this is the directory that was locked. Throws `TARGET_CHANGED`. */
  assertRoot(directory: TargetDirectory): void;
  /** Brings the file that has the name to the entry; false where it has to be written whole. */
  patch(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean>;
  /**
   * Before a file is written whole. Returns extended attributes of the old file that it keeps.
   * Throws `WRITE_LIMIT`.
   */
  beforeWhole(entry: DirectoryEntry): string | undefined;
  /** When a file or link is there, new or in the place of something else. */
  onWhole(entry: DirectoryEntry, isNew: boolean): void;
  /**
   * Patches an old file because the target has no room for a second one. Returns false if the
   * entry has to be written whole.
   */
  patchWithoutRoom(directory: TargetDirectory, entry: DirectoryEntry): Promise<boolean>;
  /** When a name of a hard-linked file is one already. */
  onSameLink(): void;
  /** Opens a directory below, and puts one where there is none, or something else. */
  enter(parent: TargetDirectory, entry: DirectoryEntry): Promise<TargetDirectory>;
  /**
   * Removes a directory that is in the way, with all below it. Throws `TARGET_IN_THE_WAY` where
   * something in it is to stay.
   */
  removeDirectory(parent: TargetDirectory, name: DiskName): Promise<void>;
}

export interface RestoreOptions {
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly counters?: RestoreCounters;
  readonly overwrite?: Overwrite;
  readonly sparse?: boolean;
  /** Of a raw volume: refuses a device that is mounted, or that another device is made of. */
  readonly unusedDevice?: boolean;
  /** Name of an entry of a tree's root that is not restored, with all below it. */
  readonly leaveOut?: string;
  /** Of a tree only this part. */
  readonly selection?: Selection;
  /**
   * Compares existing entries with the snapshot instead of overwriting them. Called once with the
   * report of the restore. The report's signal also ends all work when the target is full.
   */
  readonly inPlace?: (report: RestoreReport) => InPlaceEntries;
  /** Extended attributes and hard links that are restored; all of them by default. */
  readonly extras?: KeptExtras;
  /** Makes device nodes; without it they are left out and counted. */
  readonly devices?: boolean;
  /** Whose everything becomes, instead of those who had it. */
  readonly owner?: { readonly uid: number; readonly gid: number };
}

/** Of one restore: what is in place is made for it, with its signal. */
export interface EntryOptions extends Omit<RestoreOptions, 'inPlace'> {
  readonly inPlace?: InPlaceEntries | undefined;
}

/** After these nothing more can be written, and what is left would be read and tried in vain. */
const HOPELESS = ['ENOSPC', 'WRITE_LIMIT'];
/** A part of a target may be read-only, such as a mount. The restore ends if all of it is. */
const READ_ONLY = 'EROFS';
/** What the whole restore fails with where an entry does. */
const KEPT_CODES = ['DAMAGED_BLOB', 'STORAGE_FULL', 'WRITE_LIMIT'];
/**
 * Failures that are logged one by one; the others are counted. Our choice: a tree may have
 * millions.
 */
const LOGGED_MAX = 1000;

/**
 * What was restored and what could not be: all is tried that can be, and the first failure is told
 * at the end.
 */
export class RestoreReport {
  readonly counters: RestoreCounters;
  /**
   * For all work of the restore: aborted by the caller, and where the target takes nothing more.
   */
  readonly signal: AbortSignal;
  readonly #options: RestoreOptions;
  readonly #hopeless = new AbortController();
  #firstError: { error: unknown; path: string } | undefined;
  /**
   * Whether all of the target is read-only; a directory of the target is opened after this is made.
   */
  isReadOnly: () => boolean = () => false;

  constructor(options: RestoreOptions) {
    this.#options = options;
    this.counters = options.counters ?? newRestoreCounters();
    this.signal = AbortSignal.any([options.signal, this.#hopeless.signal]);
  }

  /** After a cancel, or once nothing can be written any more, nothing else is a failure. */
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

  /** An entry is restored, and lacks attributes that the system does not let this process set. */
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
   * Throws what was canceled, `DAMAGED_BLOB`, `STORAGE_FULL`, `TARGET_FULL`, `TARGET_UNUSABLE`,
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

/** Messages of system errors hold the path through /proc, which means nothing to a person. */
const describe = (error: unknown): string =>
  messageOf(error).replace(/, \w+ '\/proc\/self\/fd\/.*$/, '');

/** For what can be restored as a whole only: the pieces of a part do not lie where they belong. */
export function incompleteSnapshot(what: 'volume' | 'file' | 'directory', why: string): CodedError {
  const text = `this snapshot holds only a part of the ${what}, because its backup did not finish (${printable(why)}): choose another one`;
  return new CodedError('SNAPSHOT_INCOMPLETE', text);
}
