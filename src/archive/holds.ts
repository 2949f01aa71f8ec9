import { createHash } from 'node:crypto';
import { isCode } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import type { Sum } from './scratch-file.ts';

/**
 * Whether a key has these bytes. It is read, and nothing of it is kept. False where it is not
 * there. Throws what the bucket throws.
 */
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
