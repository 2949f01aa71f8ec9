import { createHash } from 'node:crypto';
import { isCode } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import type { Sum } from './scratch-file.ts';

/** Whether an object exists with these bytes. Reads all of it. Throws errors of the bucket. */
export async function holds(
  bucket: Bucket,
  key: string,
  { lengthBytes, sha256 }: Sum,
  options: SignalOptions,
): Promise<boolean> {
  const hash = createHash('sha256');
  let count = 0;
  try {
    for await (const piece of bucket.get(key, options)) {
      hash.update(piece);
      count += piece.length;
    }
  } catch (error) {
    if (isCode(error, 'BLOB_NOT_FOUND', 'BLOB_CHANGED')) return false;
    throw error;
  }
  return count === lengthBytes && hash.digest('hex') === sha256;
}
