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

const WAITING = ['WaitingForPluginOperations', 'WaitingForPluginOperationsPartiallyFailed'];
const FINALIZING = ['Finalizing', 'FinalizingPartiallyFailed'];
const OVER = ['Completed', 'PartiallyFailed', 'Failed', 'FailedValidation'];

export const statusOf = ({ status }: Backup): AfterRunStatus => (status ?? {}) as AfterRunStatus;
export const phaseOf = (backup: Backup): string => statusOf(backup).phase ?? '';
export const isWaiting = (phase: string): boolean => WAITING.includes(phase);
export const isFinalizing = (phase: string): boolean => FINALIZING.includes(phase);
/** Nothing more becomes of it but its deletion. */
export const isOver = (phase: string): boolean => OVER.includes(phase);
/** The same, or its deletion is under way. */
export const hasHadRun = (phase: string): boolean => isOver(phase) || phase === 'Deleting';
/** Whether something in it went wrong by now. */
export const isPartial = (phase: string): boolean => phase.endsWith('PartiallyFailed');
