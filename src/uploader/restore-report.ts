import { CodedError, codeOf, isCode, type Logger, messageOf } from '../base/index.ts';

export type Overwrite = 'if-different' | 'always' | 'never';

export interface RestoreCounters {
  files: number;
  directories: number;
  symlinks: number;
  /** Left as they were: same size and time, or not to be overwritten. */
  skipped: number;
  bytes: number;
  errors: number;
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
  errors: 0,
  filesFound: 0,
  bytesFound: 0,
  isFlushing: false,
});

export interface RestoreOptions {
  readonly logger: Logger;
  readonly signal: AbortSignal;
  readonly counters?: RestoreCounters;
  readonly overwrite?: Overwrite;
  readonly sparse?: boolean;
}

/** What was restored and what could not be: all is tried, and the first failure is told at the end. */
export class RestoreReport {
  readonly counters: RestoreCounters;
  readonly #options: RestoreOptions;
  #firstError: { error: unknown; path: string } | undefined;

  constructor(options: RestoreOptions) {
    this.#options = options;
    this.counters = options.counters ?? newRestoreCounters();
  }

  /** After a cancel nothing is a failure any more. */
  fail(path: string, error: unknown): void {
    if (this.#options.signal.aborted) return;
    this.counters.errors++;
    this.#firstError ??= { error, path };
    this.#options.logger.warn({ path, error: messageOf(error) }, 'an entry could not be restored');
  }

  /** Throws what was canceled, `DAMAGED_BLOB`, `STORAGE_FULL`, `TARGET_FULL`, `TARGET_UNUSABLE`, `RESTORE_INCOMPLETE`. */
  throwIfFailed(): void {
    this.#options.signal.throwIfAborted();
    if (!this.#firstError) return;
    const { error, path } = this.#firstError;
    const more = this.counters.errors > 1 ? ` (and ${this.counters.errors - 1} more failed)` : '';
    const code = isCode(error, 'DAMAGED_BLOB', 'STORAGE_FULL') ? error.code : codeFor(error);
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
  systemCodes[codeOf(error) ?? ''] ?? 'RESTORE_INCOMPLETE';

/** Messages of system errors hold the path through /proc, which means nothing to a person. */
const describe = (error: unknown): string =>
  messageOf(error).replace(/, \w+ '\/proc\/self\/fd\/.*$/, '');
