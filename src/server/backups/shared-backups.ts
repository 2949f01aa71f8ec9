import { type Logger, untilAborted } from '../../base/index.ts';
import { Cache, type KubeClient } from '../../kube/index.ts';
import type { Backup } from '../../backup/index.ts';
import { BACKUP_RESOURCE, isOver, phaseOf } from './phases.ts';

export interface SharedBackupsOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
}

/** Backups as controllers watch them. */
export interface WatchedBackups extends AsyncDisposable {
  readonly cache: Pick<Cache<Backup>, 'get' | 'list' | 'onChange' | 'failure'>;
}

/** One watch of all Backups for the controllers that need it: it begins with the first of them, and ends with the last. */
export class SharedBackups {
  readonly #options: SharedBackupsOptions;
  #use:
    | {
        readonly cache: Cache<Backup>;
        readonly abort: AbortController;
        readonly running: Promise<void>;
        users: number;
        isSynced: boolean;
      }
    | undefined;

  constructor(options: SharedBackupsOptions) {
    this.#options = options;
  }

  /** Why nothing is heard of Backups at present. */
  get failure(): string | undefined {
    return this.#use?.cache.failure;
  }

  /** All Backups of the namespace, of those that are over only what {@link trimmed} keeps; undefined where nobody follows them. */
  list(): readonly Backup[] | undefined {
    return this.#use?.isSynced === true ? this.#use.cache.list() : undefined;
  }

  /** Resolves after the first list, or an abort. */
  async open(signal: AbortSignal): Promise<WatchedBackups> {
    const { client, logger, namespace } = this.#options;
    if (!this.#use) {
      const abort = new AbortController();
      const cache = new Cache({
        ...{ client, logger, resource: BACKUP_RESOURCE, scope: { namespace }, trim: trimmed },
      });
      this.#use = { cache, abort, running: cache.run(abort.signal), users: 0, isSynced: false };
    }
    const use = this.#use;
    use.users++;
    await untilAborted(signal, use.cache.synced);
    use.isSynced ||= !signal.aborted;
    return {
      cache: use.cache,
      [Symbol.asyncDispose]: async () => {
        if (--use.users > 0) return;
        if (this.#use === use) this.#use = undefined;
        use.abort.abort();
        await use.running;
      },
    };
  }
}

/** What metrics need. */
interface Counted {
  readonly errors?: number;
  readonly warnings?: number;
  readonly startTimestamp?: string;
  readonly completionTimestamp?: string;
  readonly csiVolumeSnapshotsAttempted?: number;
  readonly csiVolumeSnapshotsCompleted?: number;
}

/** On a Backup of another cluster whose PodVolumeBackups are still to be made here. */
export const SYNC_PENDING = 'longshore.io/sync-pending';

/** Of a backup that is over only what tells it from others is kept, and what is counted: there may be ten thousand. */
function trimmed(backup: Backup): Backup {
  const phase = phaseOf(backup);
  if (!isOver(phase)) return backup;
  const { name, namespace, uid, resourceVersion, creationTimestamp, labels, deletionTimestamp } =
    backup.metadata;
  const pending = backup.metadata.annotations?.[SYNC_PENDING];
  const { errors, warnings, startTimestamp, completionTimestamp, ...counted } = (backup.status ??
    {}) as Counted;
  const { csiVolumeSnapshotsAttempted, csiVolumeSnapshotsCompleted } = counted;
  const { storageLocation } = (backup.spec as Backup['spec'] | undefined) ?? {};
  return {
    ...{ apiVersion: backup.apiVersion, kind: backup.kind },
    metadata: {
      ...{ name, namespace, uid, resourceVersion, creationTimestamp, labels },
      ...(deletionTimestamp !== undefined && { deletionTimestamp }),
      ...(pending !== undefined && { annotations: { [SYNC_PENDING]: pending } }),
    },
    spec: { ...(storageLocation !== undefined && { storageLocation }) },
    status: {
      ...{ phase, errors, warnings, startTimestamp, completionTimestamp },
      ...(csiVolumeSnapshotsAttempted !== undefined && {
        ...{ csiVolumeSnapshotsAttempted, csiVolumeSnapshotsCompleted },
      }),
    },
  } as Backup;
}
