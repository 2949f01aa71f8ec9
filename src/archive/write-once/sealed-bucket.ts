import { CodedError, type Logger } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { allVersionsFolder, fileOf } from './version-keys.ts';
import type { SealedEndOptions, SealOptions, UnsealOptions } from './publication.ts';
import { WriteOnceBucket } from './write-once-bucket.ts';

/** The bucket of a location for archives. */
export const bucketOf = (
  bucket: Bucket,
  { isWriteOnce, logger }: { readonly isWriteOnce: boolean; readonly logger?: Logger | undefined },
): Bucket => (isWriteOnce ? new WriteOnceBucket(bucket, { ...(logger && { logger }) }) : bucket);

/** Whether unpublished files have other keys until {@link seal}. */
export const keepsApart = (bucket: Bucket): boolean => bucket instanceof WriteOnceBucket;

/** Publishes the files of a folder in a write-once bucket; see {@link WriteOnceBucket.seal}. */
export function seal(
  bucket: Bucket,
  folder: string,
  options: SealOptions,
): Promise<object | undefined> {
  return bucket instanceof WriteOnceBucket
    ? bucket.seal(folder, options)
    : Promise.resolve(options.end);
}

/**
 * For a folder that is being deleted in a write-once bucket; see {@link WriteOnceBucket.unseal}.
 */
export function unseal(bucket: Bucket, folder: string, options: UnsealOptions): Promise<void> {
  return bucket instanceof WriteOnceBucket ? bucket.unseal(folder, options) : Promise.resolve();
}

/** The decided `end` in a write-once bucket; see {@link WriteOnceBucket.sealedEnd}. */
export function sealedEnd(
  bucket: Bucket,
  folder: string,
  options: SealedEndOptions,
): Promise<object | undefined> {
  return bucket instanceof WriteOnceBucket
    ? bucket.sealedEnd(folder, options)
    : Promise.resolve(undefined);
}

/**
 * Throws `FILES_APART` if a folder has unpublished versions and its bucket is no longer write-once.
 * Without them, a backup would seem to have lost files, and would end without them.
 */
export async function assertNotApart(
  bucket: Bucket,
  folder: string,
  options: SignalOptions,
): Promise<void> {
  if (bucket instanceof WriteOnceBucket) return;
  for await (const key of bucket.list(allVersionsFolder(folder), options)) {
    if (fileOf(key) === undefined) continue;
    const text = `files in ${folder} are kept apart until it is over, as its location was written once: set the annotation longshore.io/write-once of the location to "true" again`;
    throw new CodedError('FILES_APART', text, { retry: 'backoff' });
  }
}
