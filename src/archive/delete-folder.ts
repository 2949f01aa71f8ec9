import { asError } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';

/** `assertAllowed`: called before each deletion. Other processes may have stored files since. */
export type DeletionOptions = SignalOptions & { readonly assertAllowed?: () => void };

/** Deletes every listed object. A failure does not stop the others. Throws the first failure. */
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
