import type { TaskProgress, VerifyCounters } from '../../repository/index.ts';
import type { DirectorySummary, TreeCounters } from '../../snapshot/index.ts';
import type { RestoreCounters } from '../../uploader/index.ts';
import type { Sample, Total } from './figures.ts';

/** What is restored: its summary tells how much, where it has one. */
interface Restored {
  readonly type: string;
  readonly size: number;
  readonly summary?: DirectorySummary | undefined;
}

/**
 * A file has no summary where it was named inside of a snapshot; nor have objects that were named
 * by their id.
 */
function extentOf({ type, size, summary }: Restored): { files: number; bytes: number } | undefined {
  if (summary) return { files: summary.files, bytes: summary.size };
  return type === 'f' ? { files: 1, bytes: size } : undefined;
}

/**
 * Files that were there already count as done, and not for the rate. How much a selection takes is
 * found on the way.
 */
export function restoreSample(
  counters: RestoreCounters,
  root: Restored,
  isSelection = false,
): Sample {
  const { files, skipped, bytes, bytesSkipped, errors, isFlushing } = counters;
  const extent = isSelection ? undefined : extentOf(root);
  const total = (whole: number | undefined, found: number): Total =>
    whole === undefined ? { value: found, kind: 'atLeast' } : { value: whole, kind: 'exact' };
  return {
    phase: isFlushing ? 'flushing to disk' : undefined,
    bytes: { done: bytes, total: total(extent?.bytes, counters.bytesFound) },
    items: {
      noun: 'files',
      done: files + skipped,
      total: total(extent?.files, counters.filesFound),
    },
    movedBytes: bytes - bytesSkipped,
    errors,
  };
}

/**
 * Each object is looked at once, however often it is in the tree: the summary tells how many there
 * are at most.
 */
export function treeSample(
  counters: TreeCounters,
  { summary }: Pick<Restored, 'summary'>,
  readAll: boolean,
): Sample {
  const { objects, bytesRead, problemCount } = counters;
  const about = (value: number | undefined): Total | undefined =>
    value === undefined ? undefined : { value, kind: 'about' };
  const entries = summary && summary.files + summary.dirs + summary.symlinks;
  return {
    bytes: readAll ? { done: bytesRead, total: about(summary?.size) } : undefined,
    items: { noun: 'objects', done: objects, total: about(entries) },
    movedBytes: readAll ? bytesRead : undefined,
    errors: problemCount,
  };
}

/** Contents first, then the trees that are made of them. */
export function repositorySample(
  contents: VerifyCounters,
  trees: TreeCounters,
  whole: { readonly contents: number; readonly packedBytes?: number; readonly errors: number },
): Sample {
  const { objects, problemCount } = trees;
  if (objects > 0) {
    const errors = whole.errors + problemCount;
    return { phase: 'snapshots', items: { noun: 'objects', done: objects }, errors };
  }
  const { packedBytes } = whole;
  const exact = (value: number): Total => ({ value, kind: 'exact' });
  const isRead = packedBytes !== undefined;
  return {
    bytes: isRead ? { done: contents.bytesRead, total: exact(packedBytes) } : undefined,
    items: { noun: 'contents', done: contents.contents, total: exact(whole.contents) },
    movedBytes: isRead ? contents.bytesRead : undefined,
    errors: whole.errors,
  };
}

/** The task that runs, and how far it is where it tells. */
export function maintenanceSample({ task, noun, done, total }: TaskProgress): Sample {
  return {
    phase: task === '' ? 'preparing' : task,
    items: { noun, done, total: total === undefined ? undefined : { value: total, kind: 'exact' } },
    errors: 0,
  };
}
