import { CodedError, isCode, mapLimited } from '../../base/index.ts';
import type { BlobMetadata, Retention } from '../../blob/index.ts';
import { FORMAT_BLOB, BLOBCFG_BLOB } from '../format/format-blob.ts';
import type { TaskContext, TaskPlan, TaskStats } from './task.ts';

/**
 * What a repository under object lock cannot do without (Kopia: repo.GetLockingStoragePrefixes).
 */
const PREFIXES = ['p', 'q', 'n', 'x', FORMAT_BLOB, BLOBCFG_BLOB];
const REQUESTS_AT_ONCE = 16;

/**
 * Puts the end of every blob's retention off by the repository's period from now. A blob that
 * refuses, as one does that is locked for longer since the period was made shorter, keeps no other
 * from it: the first refusal is thrown at the end. One that is gone needs no lock.
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

/** As Go prints a duration of whole hours, which is what periods are. */
const formatPeriod = (ns: bigint): string => `${ns / 3_600_000_000_000n}h0m0s`;
