import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import type { BlobMetadata, Retention } from '../../blob/index.ts';
import { FORMAT_BLOB, BLOBCFG_BLOB } from '../format/format-blob.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/** Blobs that a repository under object lock needs (Kopia: repo.GetLockingStoragePrefixes). */
const PREFIXES = ['p', 'q', 'n', 'x', FORMAT_BLOB, BLOBCFG_BLOB];
const REQUESTS_AT_ONCE = 16;

/**
 * Extends every blob's lock to the repository's period from now. A blob can refuse, for example if
 * its lock is longer because the period was shortened. Refusals do not stop the others; the first
 * is thrown at the end. Missing blobs are skipped.
 */
export async function planLockExtension(context: TaskContext): Promise<TaskPlan> {
  const { repository, signal } = context;
  const { retention } = repository.format;
  const blobs: BlobMetadata[] = [];
  for (const prefix of PREFIXES) {
    for await (const blob of repository.storage.listBlobs(prefix, { signal })) blobs.push(blob);
  }
  const stats = (extendedBlobCount: number): TaskStats => ({
    kind: 'extendBlobRetentionStats',
    data: {
      toExtendBlobCount: blobs.length,
      extendedBlobCount,
      retentionPeriod: retention ? formatPeriod(retention.periodNs) : '',
    },
  });
  return {
    count: () => stats(0),
    apply: async () => {
      if (!retention) return stats(0);
      await extendLocks(context, blobs, retention);
      return stats(blobs.length);
    },
  };
}

async function extendLocks(
  { repository, signal }: TaskContext,
  blobs: readonly BlobMetadata[],
  retention: Retention,
): Promise<void> {
  let refused = 0;
  let first: CodedError | undefined;
  await mapLimited(blobs, REQUESTS_AT_ONCE, async ({ id }) => {
    try {
      await repository.storage.extendRetention(id, retention, { signal });
    } catch (error) {
      signal.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) return;
      if (!(error instanceof CodedError) || error.retry !== 'never') throw error;
      refused++;
      first ??= error;
    }
  });
  if (!first) return;
  const text = `${refused} of ${blobs.length} blobs could not have their lock extended`;
  throw new CodedError(first.code, `${text}: ${first.message}`, { cause: first });
}

/** A period in Go's format. Periods are whole hours. */
const formatPeriod = (ns: bigint): string => `${ns / 3_600_000_000_000n}h0m0s`;
