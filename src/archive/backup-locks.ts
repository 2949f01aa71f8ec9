import { asError, CodedError, isCode } from '../base/index.ts';
import type { Bucket, Retention } from '../blob/index.ts';
import type { DeletionOptions } from './delete-folder.ts';
import { backupFolder, backupKey } from './layout.ts';

/**
 * Extends the object locks of a backup's files until `retention` from now. Objects in subfolders,
 * such as the journal, are not touched. The metadata is last, as proof of the others. A refusal
 * does not stop the other files, and longer locks stay. Throws the first refusal at the end,
 * `UNSUPPORTED_PUT` for a bucket without locks, and errors of the bucket.
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
