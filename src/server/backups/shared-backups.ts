import type { Logger } from '../../base/index.ts';
import { type Backup, isOver, type KubeClient, SYNCED_UID } from '../../kube/index.ts';
import { FileWriters } from '../runs/file-writers.ts';
import { SharedObjects, type WatchedObjects } from '../shared-objects.ts';
import { BACKUP_RESOURCE, phaseOf } from './backup-kind.ts';

export interface SharedBackupsOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
}

/** Backups as controllers watch them. */
export type WatchedBackups = WatchedObjects<Backup>;

/** One watch of all Backups for the controllers that need it. */
export class SharedBackups {
  /** Who of them writes files of a backup. */
  readonly writers = new FileWriters();
  readonly #objects: SharedObjects<Backup>;

  constructor(options: SharedBackupsOptions) {
    this.#objects = new SharedObjects({ ...options, resource: BACKUP_RESOURCE, trim: trimmed });
  }

  /** Why nothing is heard of Backups at present. */
  get failure(): string | undefined {
    return this.#objects.failure;
  }

  /**
   * All Backups of the namespace, of those that are over only what {@link trimmed} keeps; undefined
   * where nobody follows them.
   */
  list(): readonly Backup[] | undefined {
    return this.#objects.list();
  }

  /** Resolves after the first list, or an abort. */
  open(signal: AbortSignal): Promise<WatchedBackups> {
    return this.#objects.open(signal);
  }
}

/** What metrics need. */
interface Counted {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  /** Until then its files may be locked. */
  readonly expiration?: string;
  readonly progress?: { readonly totalItems?: number };
  readonly csiVolumeSnapshotsAttempted?: number;
  readonly csiVolumeSnapshotsCompleted?: number;
}

/** On a Backup of another cluster whose PodVolumeBackups are still to be made here. */
export const SYNC_PENDING = 'longshore.io/sync-pending';

/**
 * Of a backup that is over only what tells it from others is kept, and what is counted: there may
 * be ten thousand.
 */
function trimmed(backup: Backup): Backup {
  const phase = phaseOf(backup);
  if (!isOver(phase)) return backup;
  const { name, namespace, uid, resourceVersion, creationTimestamp, labels, deletionTimestamp } =
    backup.metadata;
  const kept = Object.entries(backup.metadata.annotations ?? {}).filter(([key]) =>
    [SYNC_PENDING, SYNCED_UID].includes(key),
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
