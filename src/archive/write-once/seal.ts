import type { Logger } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { type SealOptions, WriteOnceBucket } from './write-once-bucket.ts';

/** A location's bucket as archives work with it. */
export const bucketOf = (
  bucket: Bucket,
  { isWriteOnce, logger }: { readonly isWriteOnce: boolean; readonly logger?: Logger | undefined },
): Bucket => (isWriteOnce ? new WriteOnceBucket(bucket, { ...(logger && { logger }) }) : bucket);

/** Publishes the files of a folder, where its bucket is written once; see {@link WriteOnceBucket.seal}. */
export function seal(
  bucket: Bucket,
  folder: string,
  options: SealOptions,
): Promise<object | undefined> {
  return bucket instanceof WriteOnceBucket
    ? bucket.seal(folder, options)
    : Promise.resolve(options.end);
}

/** What was decided of a UID where its bucket is written once; see {@link WriteOnceBucket.sealedEnd}. */
export function sealedEnd(
  bucket: Bucket,
  folder: string,
  options: SignalOptions & { readonly uid: string },
): Promise<object | undefined> {
  return bucket instanceof WriteOnceBucket
    ? bucket.sealedEnd(folder, options)
    : Promise.resolve(undefined);
}
