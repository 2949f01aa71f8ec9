import { formatGoTime } from '../../base/index.ts';
import type { Snapshot } from '../../snapshot/index.ts';
import { formatSource } from '../../snapshot/index.ts';
import type { UploadCounters } from '../../uploader/index.ts';

/** The contract of `snapshot create --json` and of each element of `snapshot list --json`. */
export function snapshotDocument(
  snapshot: Snapshot,
  counters?: UploadCounters,
  more: object = {},
): object {
  const { id, source, rootEntry, incomplete, description, tags, pins, stats } = snapshot;
  return {
    id,
    rootObjectId: rootEntry?.objectId ?? null,
    source: { ...source, text: formatSource(source) },
    description,
    startTime: formatGoTime(snapshot.startTimeNs),
    endTime: formatGoTime(snapshot.endTimeNs),
    incomplete: incomplete ?? null,
    tags: tags ?? {},
    pins: pins ?? [],
    stats: {
      files: rootEntry?.summary?.files ?? stats.fileCount + stats.cachedFiles,
      directories: rootEntry?.summary?.dirs ?? stats.dirCount,
      totalBytes: stats.totalSize,
      cachedFiles: stats.cachedFiles,
      errors: stats.errorCount,
      ignoredErrors: stats.ignoredErrorCount,
      ...(counters && {
        skipped: counters.skipped,
        bytesRead: counters.bytesRead,
        bytesNew: counters.bytesNew,
        bytesPacked: counters.bytesPacked,
        contentsNew: counters.contentsNew,
        contentsDeduplicated: counters.contentsDeduplicated,
      }),
    },
    ...more,
  };
}
