import { listReadableSnapshots, type SourceInfo } from '../../snapshot/index.ts';
import type { Repository } from '../../repository/index.ts';
import { EstimateAhead, type UploadCounters } from '../../uploader/index.ts';
import type { Sample, Total } from './figures.ts';
import { type Progress, type ProgressStyle, startProgress } from './reporter.ts';

interface Extent {
  readonly files: number;
  readonly bytes: number;
}

/** Sizes of the volume from other sources than the upload itself. */
export interface Guesses {
  /** From the last complete snapshot of the source. */
  readonly previous?: Extent | undefined;
  readonly estimate?: (Extent & { readonly state: 'counting' | 'whole' | 'given-up' }) | undefined;
}

/** A sample of an upload. Cached bytes count as done, but not as read. */
export function uploadSample(counters: UploadCounters, guesses: Guesses): Sample {
  const { bytesRead, cachedBytes, bytesInHoles, totalBytes, errors } = counters;
  const filesDone = counters.files + counters.cachedFiles;
  const bytesDone = Math.max(bytesRead + cachedBytes + bytesInHoles, totalBytes);
  const { filesFound, bytesFound, isListed, ignoredErrors, objectsChecked } = counters;
  const total = (found: number, of: keyof Extent): Total => {
    if (isListed) return { value: found, kind: 'exact' };
    const { estimate, previous } = guesses;
    const counted = Math.max(found, estimate?.[of] ?? 0);
    if (estimate?.state === 'whole') return { value: counted, kind: 'about' };
    if (previous) return { value: Math.max(counted, previous[of]), kind: 'about' };
    return { value: counted, kind: 'atLeast' };
  };
  const isRead = isListed && filesDone + errors + ignoredErrors >= filesFound;
  return {
    phase: objectsChecked > 0 ? 'checking what is stored' : isRead ? 'finishing' : undefined,
    bytes: { done: bytesDone, total: total(bytesFound, 'bytes') },
    items: { noun: 'files', done: filesDone, total: total(filesFound, 'files') },
    movedBytes: bytesRead,
    errors,
  };
}

export interface UploadProgressOptions {
  readonly repository: Repository;
  readonly source: SourceInfo;
  readonly path: string;
  /** The size of a device or image is known. */
  readonly isBlock: boolean;
  readonly counters: UploadCounters;
  readonly signal: AbortSignal;
}

/** Shows the progress of an upload. If useful, an estimate of the whole runs ahead of it. */
export async function startUploadProgress(
  style: ProgressStyle,
  options: UploadProgressOptions,
): Promise<Progress> {
  const { counters, signal } = options;
  if (style === 'none')
    return startProgress('snapshot create', style, () => uploadSample(counters, {}));
  const previous = await previousExtent(options);
  // A log has no waiting reader, so a second thread would only cost the upload time and memory.
  const isWanted = !options.isBlock && style !== 'lines';
  const ahead = isWanted ? new EstimateAhead(options) : undefined;
  const progress = startProgress('snapshot create', style, () => {
    if (counters.isListed || signal.aborted) ahead?.stop();
    return uploadSample(counters, { previous, estimate: ahead?.report });
  });
  return {
    stop: () => {
      ahead?.stop();
      progress.stop();
    },
    get elapsedSeconds() {
      return progress.elapsedSeconds;
    },
  };
}

async function previousExtent({
  repository,
  source,
}: UploadProgressOptions): Promise<Extent | undefined> {
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const last = snapshots.findLast(({ incomplete }) => !incomplete);
  if (!last) return undefined;
  const { stats, rootEntry } = last;
  return {
    files: rootEntry?.summary?.files ?? stats.fileCount + stats.cachedFiles,
    bytes: rootEntry?.summary?.size ?? stats.totalSize,
  };
}
