import { asError, CodedError, isCode } from '../base/index.ts';
import type { Bucket, Retention } from '../blob/index.ts';
import type { DeletionOptions } from './delete-folder.ts';
import { backupFolder, backupKey } from './layout.ts';

/**
 * Puts the end of the locks of a backup's files off, to so long from now; objects in folders, as of
 * the journal, are left to the bucket. The Backup's own file is the last, so that it stands for the
 * others. A file that refuses keeps no other from it, and one that is locked for longer already is
 * good as it is: the first refusal is thrown at the end. Throws `UNSUPPORTED_PUT` where the bucket
 * knows no locks, and what the bucket throws.
 */
export async function extendBackupLocks(
  bucket: Bucket,
  name: string,
  retention: Retention,
  { assertAllowed, signal }: DeletionOptions = {},
): Promise<void> {
  const extend = bucket.extendRetention?.bind(bucket);
  if (!extend) {
    const text = `objects of ${bucket.displayName} cannot be locked`;
    throw new CodedError('UNSUPPORTED_PUT', text);
  }
  const folder = backupFolder(name);
  const last = backupKey(name, 'metadata');
  const keys: string[] = [];
  for await (const key of bucket.list(folder, { signal })) {
    if (!key.slice(folder.length).includes('/') && key !== last) keys.push(key);
  }
  let refusal: unknown;
  for (const key of [...keys, last]) {
    assertAllowed?.();
    try {
      await extend(key, retention, { signal });
    } catch (error) {
      signal?.throwIfAborted();
      if (isCode(error, 'BLOB_NOT_FOUND')) continue;
      if (!(error instanceof CodedError) || error.retry !== 'never') throw error;
      refusal ??= error;
    }
  }
  if (refusal !== undefined) throw asError(refusal);
}
