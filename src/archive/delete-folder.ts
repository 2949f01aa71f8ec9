import { asError } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';

/**
 * `assertAllowed`: right before each deletion; another process may have stored files under the same
 * name since.
 */
export type DeletionOptions = SignalOptions & { readonly assertAllowed?: () => void };

/**
 * Every object that the listing names; one that fails does not keep the others. Throws the first
 * failure.
 */
export async function deleteFolder(
  bucket: Bucket,
  folder: string,
  options: DeletionOptions,
): Promise<void> {
  const failures: unknown[] = [];
  for await (const key of bucket.list(folder, options)) {
    options.assertAllowed?.();
    await bucket.delete(key, options).catch((error: unknown) => failures.push(error));
  }
  if (failures.length > 0) throw asError(failures[0]);
}
