import type { TaskProgress, VerifyCounters } from '../../repository/index.ts';
import type { DirectorySummary, TreeCounters } from '../../snapshot/index.ts';
import type { RestoreCounters } from '../../uploader/index.ts';
import type { Sample, Total } from './figures.ts';

/** The restored entry. Its summary, if any, has the totals. */
interface Restored {
  readonly type: string;
  readonly size: number;
  readonly summary?: DirectorySummary | undefined;
}

/** Files selected inside a snapshot have no summary, and neither do objects selected by id. */
function extentOf({ type, size, summary }: Restored): { files: number; bytes: number } | undefined {
  if (summary) return { files: summary.files, bytes: summary.size };
  return type === 'f' ? { files: 1, bytes: size } : undefined;
}

/** Skipped files count as done, but not for the rate. A selection has no known total. */
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

/** Each object is visited once, however often it occurs. The summary is an upper limit. */
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

/** Contents first, then the trees that use them. */
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

/** The running task, and its progress if it reports any. */
export function maintenanceSample({ task, noun, done, total }: TaskProgress): Sample {
  return {
    phase: task === '' ? 'preparing' : task,
    items: { noun, done, total: total === undefined ? undefined : { value: total, kind: 'exact' } },
    errors: 0,
  };
}
