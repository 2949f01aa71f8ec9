import { journalFolder, type NativeSnapshot } from '../../archive/index.ts';
import { isCode } from '../../base/index.ts';
import { nativeSnapshotsIn, type VolumeFact } from '../../backup-volumes/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { decodeSegment } from '../backups/run/segment.ts';

/** Native snapshots that the journal of a backup tells of: a run that has failed has stored no list of them. Throws what the bucket throws. */
export async function journalSnapshots({
  bucket,
  name,
  uid,
  signal,
}: {
  readonly bucket: Bucket;
  readonly name: string;
  readonly uid: string;
  readonly signal: AbortSignal;
}): Promise<readonly NativeSnapshot[]> {
  const facts: VolumeFact[] = [];
  for await (const key of bucket.list(journalFolder(name, uid), { signal })) {
    try {
      const bytes = Buffer.concat(await Array.fromAsync(bucket.get(key, { signal })));
      for (const { facts: own = [] } of decodeSegment(bytes, key).records.items) facts.push(...own);
    } catch (error) {
      // The rest of it may tell of some all the same.
      if (!isCode(error, 'DAMAGED_JOURNAL', 'BLOB_NOT_FOUND')) throw error;
    }
  }
  return nativeSnapshotsIn(facts);
}
