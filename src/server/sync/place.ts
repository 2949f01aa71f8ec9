import { createHash } from 'node:crypto';
import { bucketLocation, parseBackupStorageLocation } from '../../config/index.ts';
import type { BackupStorageLocation } from '../../kube/index.ts';

/**
 * On a BackupStorageLocation: where it was when all of its backups were there, as a hash of its
 * place.
 */
export const SYNCED_PLACE = 'longshore.io/synced-place';

const HASH_CHARS = 16;

/**
 * What tells one place of backups from another: bucket, prefix, and how they are reached. Throws
 * `BAD_STORAGE_LOCATION`.
 */
export function placeOf(location: BackupStorageLocation): string {
  const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
  const hash = createHash('sha256').update(bucketLocation(parsed)).digest('hex');
  return hash.slice(0, HASH_CHARS);
}

/** Whether it is the same location still, at the same place. */
export function isSamePlace(
  before: BackupStorageLocation,
  now: BackupStorageLocation | undefined,
): boolean {
  if (now?.metadata.uid !== before.metadata.uid) return false;
  try {
    return now.metadata.deletionTimestamp === undefined && placeOf(now) === placeOf(before);
  } catch {
    // What cannot be read any more is another one.
    return false;
  }
}
