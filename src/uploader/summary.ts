import type { Nanoseconds } from '../base/index.ts';
import type { DirectoryEntry, DirectorySummary, EntryError } from '../snapshot/index.ts';

/** An entry that could not be stored; `ignored` by policy. An empty error is not reported. */
export interface EntryFailure {
  readonly error: EntryError;
  readonly ignored: boolean;
}

/** The summary of a directory: its entries, what is below them, and what failed. `ownMtimeNs` counts when it is empty. */
export function summarize(
  entries: readonly DirectoryEntry[],
  failures: readonly EntryFailure[],
  ownMtimeNs: Nanoseconds,
  isIncomplete: boolean,
): DirectorySummary {
  let [size, files, symlinks, dirs, numFailed, numIgnoredErrors] = [0, 0, 0, 1, 0, 0];
  let maxTimeNs = entries.length === 0 ? ownMtimeNs : 0n;
  let childIncomplete: string | undefined;
  const errors: EntryError[] = [];
  for (const entry of entries) {
    if (entry.mtimeNs > maxTimeNs) maxTimeNs = entry.mtimeNs;
    const { summary } = entry;
    if (!summary) {
      if (entry.type === 's') symlinks++;
      else {
        files++;
        size += entry.size;
      }
      continue;
    }
    size += summary.size;
    files += summary.files;
    symlinks += summary.symlinks;
    dirs += summary.dirs;
    numFailed += summary.numFailed;
    numIgnoredErrors += summary.numIgnoredErrors ?? 0;
    errors.push(...(summary.errors ?? []));
    childIncomplete ??= summary.incomplete;
    if (summary.maxTimeNs > maxTimeNs) maxTimeNs = summary.maxTimeNs;
  }
  for (const { error, ignored } of failures) {
    if (error.error === '') continue;
    errors.push(error);
    if (ignored) numIgnoredErrors++;
    else numFailed++;
  }
  errors.sort((a, b) => (a.path < b.path ? -1 : 1));
  return {
    size,
    files,
    symlinks,
    dirs,
    maxTimeNs,
    incomplete: isIncomplete ? 'canceled' : childIncomplete,
    numFailed,
    numIgnoredErrors,
    errors,
  };
}
