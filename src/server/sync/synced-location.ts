import { createHash } from 'node:crypto';
import { bucketLocation, parseBackupStorageLocation } from '../../config/index.ts';
import type { BackupStorageLocation } from '../../kube/index.ts';

/**
 * Annotation on a BackupStorageLocation: hash of its place when all its backups were last present.
 */
export const SYNCED_PLACE = 'longshore.io/synced-place';

const HASH_CHARS = 16;

/** Identifies a place by bucket, prefix and connection. Throws `BAD_STORAGE_LOCATION`. */
export function placeOf(location: BackupStorageLocation): string {
  const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
  const hash = createHash('sha256').update(bucketLocation(parsed)).digest('hex');
  return hash.slice(0, HASH_CHARS);
}

/** Whether it is still the same location at the same place. */
export function isSamePlace(
  before: BackupStorageLocation,
  now: BackupStorageLocation | undefined,
): boolean {
  if (now?.metadata.uid !== before.metadata.uid) return false;
  try {
    return now.metadata.deletionTimestamp === undefined && placeOf(now) === placeOf(before);
  } catch {
    // An invalid location counts as another place.
    return false;
  }
}
