import { BackupArchive, isStoredOf, type StoredArchive } from '../../archive/index.ts';
import { isCode, messageOf } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { type Backup, isFailed } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';

/**
 * The owner of the files stored under the name of a Backup.
 * - `none`: the Backup never began and owns no files.
 * - `foreign`: another Backup of this name stored them, in this cluster or another.
 * - `own`: the Backup owns them. `uid` is the UID that they were stored under. `stored` is
 *   undefined if the main file is missing.
 * - `unknown`: the main file exists, but is unreadable or not trusted.
 */
export type Ownership =
  | { readonly kind: 'none' }
  | { readonly kind: 'foreign' }
  | { readonly kind: 'own'; readonly uid: string; readonly stored: StoredArchive | undefined }
  | { readonly kind: 'unknown'; readonly reason: string };

/**
 * Annotation on a Backup in deletion: the UID that its files were stored under. A synced Backup has
 * another UID. The annotation is set when all data are deleted that the files lead to. Once the
 * main file is deleted, only the annotation holds the UID.
 */
export const STORED_UID = 'longshore.io/stored-uid';

interface RunStatus {
  readonly startTimestamp?: string | null;
  readonly completionTimestamp?: string | null;
  readonly failureReason?: string;
}

const statusOf = ({ status }: { status?: unknown }): RunStatus => status ?? {};
const startOf = (backup: { status?: unknown }): string | undefined =>
  statusOf(backup).startTimestamp ?? undefined;

/** A Backup has no start if it was refused, or canceled before its turn. */
export const hasBegun = (backup: Backup): boolean => startOf(backup) !== undefined;

/** Whether it was refused, or canceled before its turn: without any files to delete. */
export const neverBegan = (backup: Backup): boolean =>
  !hasBegun(backup) && (isFailed(phaseOf(backup)) || phaseOf(backup) === 'Deleting');

/** Whether the Backup ended and stored its files, according to its status. */
export const wasStored = (backup: Backup): boolean => {
  const { completionTimestamp, failureReason = '' } = statusOf(backup);
  return hasBegun(backup) && !!completionTimestamp && failureReason === '';
};

/** Throws errors of the bucket. */
export async function ownershipOf(
  backup: Backup,
  bucket: Bucket,
  signal: AbortSignal,
): Promise<Ownership> {
  if (!hasBegun(backup)) return { kind: 'none' };
  const { name, uid, annotations } = backup.metadata;
  try {
    const stored = await new BackupArchive(bucket).open(name, { signal });
    const storedUid = stored.metadata.metadata.uid ?? '';
    if (!isStoredOf(backup, stored.metadata)) return { kind: 'foreign' };
    // Manipulated files could name the snapshots of other backups.
    stored.assertUnchanged(backup);
    return { kind: 'own', uid: storedUid, stored };
  } catch (error) {
    if (isCode(error, 'WRONG_SIGNATURE', 'NOT_SIGNED')) {
      return { kind: 'unknown', reason: messageOf(error) };
    }
    if (isCode(error, 'BLOB_NOT_FOUND')) {
      return { kind: 'own', uid: annotations?.[STORED_UID] ?? uid, stored: undefined };
    }
    if (isCode(error, 'DAMAGED_ARCHIVE')) return { kind: 'unknown', reason: messageOf(error) };
    throw error;
  }
}
