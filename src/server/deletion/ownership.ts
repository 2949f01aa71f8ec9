import { BackupArchive, isStoredOf, type StoredArchive } from '../../archive/index.ts';
import { isCode, messageOf } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import { type Backup, isFailed } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';

/**
 * Whose the files below the name of a Backup are. `none`: it never began, and owns nothing,
 * whatever lies there. `foreign`: another Backup of its name has stored them, in this cluster or
 * another. `own`: its own; `uid` is the one that they were stored under, and without `stored` there
 * is no file that stands for the whole. `unknown`: that file is there, and cannot be read or
 * believed.
 */
export type Ownership =
  | { readonly kind: 'none' }
  | { readonly kind: 'foreign' }
  | { readonly kind: 'own'; readonly uid: string; readonly stored: StoredArchive | undefined }
  | { readonly kind: 'unknown'; readonly reason: string };

/**
 * On a Backup that is deleted: the UID that its files were stored under, another one where it was
 * taken over from a bucket. Put on when all is gone that they lead to; after their main file is
 * gone nothing else tells.
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

/** It has no start when it was refused, or canceled before its turn. */
export const hasBegun = (backup: Backup): boolean => startOf(backup) !== undefined;

/**
 * Of one that was refused, or canceled before its turn: nothing of it is anywhere, and no location
 * is needed to delete it.
 */
export const neverBegan = (backup: Backup): boolean =>
  !hasBegun(backup) && (isFailed(phaseOf(backup)) || phaseOf(backup) === 'Deleting');

/** Whether it came to an end with files, as far as its status says. */
export const wasStored = (backup: Backup): boolean => {
  const { completionTimestamp, failureReason = '' } = statusOf(backup);
  return hasBegun(backup) && !!completionTimestamp && failureReason === '';
};

/** Throws what the bucket throws. */
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
    // Changed files could name the snapshots of other backups.
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
