import type { NativeSnapshot } from '../../../archive/index.ts';
import type { BackupRunResult, Results } from '../../../backup/index.ts';
import type { UploadOperation, VolumeOutcome } from '../../../backup-volumes/index.ts';
import {
  type BackupOperation,
  countsOf,
  isAnyRunning,
  type Operation,
} from '../../../item-operations/index.ts';
import { type Backup, phaseAfterRun } from '../../../kube/index.ts';

/** The status of a backup after its items: its phase and its counts. */

type Counts = Pick<Results, 'warningCount' | 'errorCount'>;

/** `status` goes into the files of the backup. The CR also gets `hookStatus`. */
export function statusAfterItems(
  made: BackupRunResult,
  results: Counts,
  operations: readonly Operation[],
  { nativeSnapshots, csiSnapshots }: Pick<VolumeOutcome, 'nativeSnapshots' | 'csiSnapshots'>,
): {
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
  readonly hookStatus: object;
} {
  const status = {
    ...progressOf(made),
    ...countFields(results, operations),
    ...(nativeSnapshots.length > 0 && {
      volumeSnapshotsAttempted: nativeSnapshots.length,
      volumeSnapshotsCompleted: nativeSnapshots.filter(isCompleted).length,
    }),
    ...(csiSnapshots > 0 && { csiVolumeSnapshotsAttempted: csiSnapshots }),
  };
  const { hooksAttempted, hooksFailed } = made;
  const hookStatus = {
    ...(hooksAttempted > 0 && { hooksAttempted }),
    ...(hooksFailed > 0 && { hooksFailed }),
  };
  return {
    phase: phaseAfterRun({ waiting: isAnyRunning(operations), partial: results.errorCount > 0 }),
    status,
    hookStatus,
  };
}

const isCompleted = ({ status }: NativeSnapshot): boolean => status?.phase === 'Completed';

const progressOf = ({ totalItems, itemsBackedUp }: BackupRunResult): object =>
  totalItems === 0 ? { progress: {} } : { progress: { totalItems, itemsBackedUp } };

/** Like Go, leaves out zeros. */
export function countFields(
  { warningCount, errorCount }: Counts,
  operations: readonly Operation[],
): Record<string, number> {
  const { attempted, completed, failed } = countsOf(operations);
  const all = {
    warnings: warningCount,
    errors: errorCount,
    backupItemOperationsAttempted: attempted,
    backupItemOperationsCompleted: completed,
    backupItemOperationsFailed: failed,
  };
  return Object.fromEntries(Object.entries(all).filter(([, count]) => count > 0));
}

/** The Backup as its files contain it. */
export const metadataOf = (backup: Backup, phase: string, status: object): object => ({
  ...backup,
  status: { ...backup.status, ...status, phase },
});

const UPLOADS = 'datauploads';

/** The DataUpload of an operation that moves a volume. */
export function uploadOf({ spec }: Operation): UploadOperation[] {
  if (!('postOperationItems' in spec)) return [];
  const { Resource: resource, Namespace: namespace, Name: name } = spec.resourceIdentifier;
  const items = (spec as BackupOperation['spec']).postOperationItems ?? [];
  const upload = items.find((item) => item.Resource === UPLOADS);
  return [
    {
      operationId: spec.operationID,
      item: { resource, namespace, name },
      upload: upload && { namespace: upload.Namespace, name: upload.Name },
    },
  ];
}
