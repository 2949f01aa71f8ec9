import { type Backup, BACKUPS, type BackupStatus, type Resource } from '../../kube/index.ts';
import type { FollowedKind } from '../operations/followed-kind.ts';

/** Typed with the fields that this server reads. */
export const BACKUP_RESOURCE = BACKUPS as Resource<Backup>;

/** Used by the controllers after a run. */
export const FOLLOWED_BACKUPS: FollowedKind<Backup> = {
  kind: 'Backup',
  word: 'backup',
  resource: BACKUP_RESOURCE,
  counts: {
    attempted: 'backupItemOperationsAttempted',
    completed: 'backupItemOperationsCompleted',
    failed: 'backupItemOperationsFailed',
  },
};

export const statusOf = ({ status }: Backup): Readonly<BackupStatus> => status ?? {};
export const phaseOf = (backup: Backup): string => statusOf(backup).phase ?? '';
