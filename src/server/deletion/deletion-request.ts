import {
  type Backup,
  type BackupStorageLocation,
  hasHadRun,
  isFinalizing,
  isInLine,
  type KubeObject,
} from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { neverBegan } from './ownership.ts';

/** Created by `velero backup delete` and when a backup expires. */
export interface DeletionRequest extends KubeObject {
  readonly spec?: { readonly backupName?: string };
  readonly status?: {
    readonly phase?: 'New' | 'InProgress' | 'Processed';
    readonly errors?: readonly string[] | null;
  };
}

export const DELETING = 'Deleting';

/**
 * Whether a deletion may begin. Refusals use Velero's words if it has any (v1.18.3:
 * pkg/controller/backup_deletion_controller.go).
 */
export type Standing =
  | { readonly kind: 'refused'; readonly error: string }
  /** This server runs the backup: it is canceled first, and deleted after its end. */
  | { readonly kind: 'running'; readonly isCancelable: boolean }
  | { readonly kind: 'free' };

export function standingOf(
  backup: Backup,
  location: BackupStorageLocation | undefined,
  { isMadeHere, reading }: { readonly isMadeHere: boolean; readonly reading: string | undefined },
): Standing {
  if (neverBegan(backup)) return { kind: 'free' };
  const { storageLocation: name = '' } = (backup.spec as Backup['spec'] | undefined) ?? {};
  if (!location) return refused(`backup storage location ${name} not found`);
  if (location.spec?.accessMode === 'ReadOnly') {
    return refused(
      `cannot delete backup because backup storage location ${name} is currently in read-only mode`,
    );
  }
  if (location.status?.phase !== 'Available') {
    return refused(
      `cannot delete backup because backup storage location ${name} is currently in Unavailable state`,
    );
  }
  if (reading !== undefined) return refused(reading);
  const phase = phaseOf(backup);
  if (hasHadRun(phase)) return { kind: 'free' };
  if (isMadeHere) return { kind: 'running', isCancelable: !isFinalizing(phase) };
  // The other server has not begun with this backup, and will not begin any more.
  if (isInLine(phase)) return { kind: 'free' };
  return refused('backup is still in progress');
}

const refused = (error: string): Standing => ({
  kind: 'refused',
  error: `backup deletion failed: ${error}`,
});
