import type { Backup } from '../../backup/index.ts';
import { BACKUPS, type Resource } from '../../kube/index.ts';
import type { FollowedKind } from '../operations/followed-kind.ts';

/** With the fields that are looked at. */
export const BACKUP_RESOURCE = BACKUPS as Resource<Backup>;

/** For what follows a run. */
export const FOLLOWED_BACKUPS: FollowedKind<Backup> = {
  ...{ kind: 'Backup', word: 'backup', resource: BACKUP_RESOURCE },
  counts: {
    attempted: 'backupItemOperationsAttempted',
    completed: 'backupItemOperationsCompleted',
    failed: 'backupItemOperationsFailed',
  },
};

/** The part of a Backup's status that the controllers after its run read and write. */
export interface AfterRunStatus {
  readonly phase?: string;
  readonly errors?: number;
  readonly warnings?: number;
  readonly failureReason?: string;
  readonly completionTimestamp?: string | null;
  readonly backupItemOperationsAttempted?: number;
  readonly backupItemOperationsCompleted?: number;
  readonly backupItemOperationsFailed?: number;
  readonly csiVolumeSnapshotsCompleted?: number;
}

export const statusOf = ({ status }: Backup): AfterRunStatus => (status ?? {}) as AfterRunStatus;
export const phaseOf = (backup: Backup): string => statusOf(backup).phase ?? '';
