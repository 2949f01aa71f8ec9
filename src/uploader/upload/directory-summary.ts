import { compareUtf8, type Nanoseconds } from '../../base/index.ts';
import type { DirectoryEntry, DirectorySummary, EntryError } from '../../snapshot/index.ts';

/** Kopia: fs/entry.go, MaxFailedEntriesPerDirectorySummary. The first failures by path. */
const ERRORS_MAX = 10;
/** Failures in memory, before all but the first are dropped. */
const ERRORS_HELD_MAX = 1000;

/** An entry that could not be stored; `ignored` by policy. An empty error is not reported. */
export interface EntryFailure {
  readonly error: EntryError;
  readonly ignored: boolean;
}

/** Adds up the summary of a directory: its entries, those below, and failures. */
export class Summarizer {
  #size = 0;
  #files = 0;
  #symlinks = 0;
  #dirs = 1;
  #numFailed = 0;
  #numIgnoredErrors = 0;
  #isEmpty = true;
  #maxTimeNs = 0n;
  #childIncomplete: string | undefined;
  #errors: EntryError[] = [];

  add({ type, size, mtimeNs, summary }: DirectoryEntry): void {
    this.#isEmpty = false;
    if (mtimeNs > this.#maxTimeNs) this.#maxTimeNs = mtimeNs;
    if (!summary) {
      if (type === 's') this.#symlinks++;
      else {
        this.#files++;
        this.#size += size;
      }
      return;
    }
    this.#size += summary.size;
    this.#files += summary.files;
    this.#symlinks += summary.symlinks;
    this.#dirs += summary.dirs;
    this.#numFailed += summary.numFailed;
    this.#numIgnoredErrors += summary.numIgnoredErrors ?? 0;
    for (const error of summary.errors ?? []) this.#name(error);
    this.#childIncomplete ??= summary.incomplete;
    if (summary.maxTimeNs > this.#maxTimeNs) this.#maxTimeNs = summary.maxTimeNs;
  }

  fail({ error, ignored }: EntryFailure): void {
    if (error.error === '') return;
    this.#name(error);
    if (ignored) this.#numIgnoredErrors++;
    else this.#numFailed++;
  }

  #name(error: EntryError): void {
    this.#errors.push(error);
    if (this.#errors.length > ERRORS_HELD_MAX) this.#errors = firstByPath(this.#errors);
  }

  /** A copy that accepts further entries. */
  copy(): Summarizer {
    const copy = new Summarizer();
    copy.#size = this.#size;
    copy.#files = this.#files;
    copy.#symlinks = this.#symlinks;
    copy.#dirs = this.#dirs;
    copy.#numFailed = this.#numFailed;
    copy.#numIgnoredErrors = this.#numIgnoredErrors;
    copy.#isEmpty = this.#isEmpty;
    copy.#maxTimeNs = this.#maxTimeNs;
    copy.#childIncomplete = this.#childIncomplete;
    copy.#errors = [...this.#errors];
    return copy;
  }

  /** `ownMtimeNs` counts if the directory is empty. */
  finish(ownMtimeNs: Nanoseconds, isIncomplete: boolean): DirectorySummary {
    return {
      size: this.#size,
      files: this.#files,
      symlinks: this.#symlinks,
      dirs: this.#dirs,
      maxTimeNs: this.#isEmpty ? ownMtimeNs : this.#maxTimeNs,
      incomplete: isIncomplete ? 'canceled' : this.#childIncomplete,
      numFailed: this.#numFailed,
      numIgnoredErrors: this.#numIgnoredErrors,
      errors: firstByPath(this.#errors),
    };
  }
}

const firstByPath = (errors: EntryError[]): EntryError[] =>
  errors.sort((a, b) => compareUtf8(a.path, b.path)).slice(0, ERRORS_MAX);
