import { type Backup, isOver, SIGNED, SYNCED_UID } from '../../kube/index.ts';
import { FileWriters } from '../runs/file-writers.ts';
import { SharedObjects, type WatchedObjects, type WatchPlace } from '../shared-objects.ts';
import { BACKUP_RESOURCE, phaseOf } from './backup-kind.ts';

export type WatchedBackups = WatchedObjects<Backup>;

/** A watch of all Backups for all controllers. Reduces finished ones by {@link trimmed}. */
export class SharedBackups extends SharedObjects<Backup> {
  /** Tracks the writers of backup files. */
  readonly writers = new FileWriters();

  constructor(options: WatchPlace) {
    super({ ...options, resource: BACKUP_RESOURCE, trim: trimmed });
  }
}

/** Fields for metrics. */
interface Counted {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  /** Files may be locked until then. */
  readonly expiration?: string;
  readonly progress?: { readonly totalItems?: number };
  readonly csiVolumeSnapshotsAttempted?: number;
  readonly csiVolumeSnapshotsCompleted?: number;
}

/** On a Backup of another cluster whose PodVolumeBackups are not created here yet. */
export const SYNC_PENDING = 'longshore.io/sync-pending';

/**
 * Keeps only identity, counts and the mark of a signature of finished backups: there may be ten
 * thousand. The sync needs the mark.
 */
function trimmed(backup: Backup): Backup {
  const phase = phaseOf(backup);
  if (!isOver(phase)) return backup;
  const { name, namespace, uid, resourceVersion, creationTimestamp, labels, deletionTimestamp } =
    backup.metadata;
  const kept = Object.entries(backup.metadata.annotations ?? {}).filter(([key]) =>
    [SIGNED, SYNC_PENDING, SYNCED_UID].includes(key),
  );
  const { errors, warnings, startTimestamp, completionTimestamp, expiration, ...counted } =
    (backup.status ?? {}) as Counted;
  const { csiVolumeSnapshotsAttempted, csiVolumeSnapshotsCompleted, progress } = counted;
  const totalItems = progress?.totalItems;
  const { storageLocation } = (backup.spec as Backup['spec'] | undefined) ?? {};
  return {
    apiVersion: backup.apiVersion,
    kind: backup.kind,
    metadata: {
      name,
      namespace,
      uid,
      resourceVersion,
      creationTimestamp,
      labels,
      ...(deletionTimestamp !== undefined && { deletionTimestamp }),
      ...(kept.length > 0 && { annotations: Object.fromEntries(kept) }),
    },
    spec: { ...(storageLocation !== undefined && { storageLocation }) },
    status: {
      phase,
      errors,
      warnings,
      startTimestamp,
      completionTimestamp,
      expiration,
      ...(totalItems !== undefined && { progress: { totalItems } }),
      ...(csiVolumeSnapshotsAttempted !== undefined && {
        csiVolumeSnapshotsAttempted,
        csiVolumeSnapshotsCompleted,
      }),
    },
  } as Backup;
}
