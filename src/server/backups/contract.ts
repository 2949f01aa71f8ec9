import type { RestoreRef, StoredArchive } from '../../archive/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { BackupAction, BlockAction, Progress } from '../../backup/index.ts';
import type { OperationAsker } from '../../item-operations/index.ts';
import type { Backup } from '../../kube/index.ts';
import type { VolumeSnapshotter } from '../../plugin/index.ts';
import type { RestoreBucket } from '../restores/files/restore-bucket.ts';

/**
 * Contracts between the controllers of backups:
 * - The backup controller decides when a Backup runs, and writes its phases.
 * - A runner makes one backup, from the first item to its files in the bucket.
 * - Sessions call the actions of plugins. Volumes handle data outside the objects.
 */

/** The storage of a location with its current credentials. The caller closes it. */
export interface OpenBucket extends AsyncDisposable {
  readonly bucket: Bucket;
  /** Only for a Restore: files in the bucket, and files that the cluster keeps. */
  readonly files?: Pick<RestoreBucket, 'claim' | 'upload' | 'deleteKept' | 'assertInBucket'>;
}

export interface Buckets {
  /**
   * Opens a BackupStorageLocation by name. For a Restore, the cluster keeps files that the bucket
   * refuses. Throws `NO_LOCATION`, and errors of the API server and the storage.
   */
  open(location: string, signal: AbortSignal, restore?: RestoreRef): Promise<OpenBucket>;
}

/**
 * The actions for one backup: our own and those of plugins. Closing it ends the plugin processes.
 */
export interface ActionSession extends AsyncDisposable {
  /** Actions in Velero's order. Starts every plugin that has some. */
  loadActions(signal: AbortSignal): Promise<{
    readonly actions: readonly BackupAction[];
    readonly blockActions: readonly BlockAction[];
  }>;
  /** For all operations of this backup, also from earlier servers. */
  readonly asker: OperationAsker;
  /** Velero's VolumeSnapshotter of a provider. Throws `NO_SUCH_PLUGIN`. */
  snapshotter(provider: string, config: Readonly<Record<string, string>>): VolumeSnapshotter;
}

export interface ActionSessions {
  /**
   * `logger` gets the log of the plugins. Their errors and warnings count for this backup. Throws
   * `PLUGIN_FOLDER`.
   */
  open(backup: Backup, logger: Logger): Promise<ActionSession>;
}

export interface RunRequest {
  /** The CR in `InProgress`, after validation. */
  readonly backup: Backup;
  /** Called at most once a second, never twice at once. */
  readonly onProgress: (progress: Progress) => Promise<void>;
  /** Called before each write that a second server must not repeat. Throws `LEADERSHIP_LOST`. */
  readonly assertLeading: () => void;
  /**
   * The reason is `CANCELED`. With `by: 'shutdown'` another server continues. Otherwise the backup
   * is canceled or deleted, and its operations are canceled too.
   */
  readonly signal: AbortSignal;
  /**
   * Called before `run` throws, if everything that was begun is ended. Not called if that failed,
   * for example because the journal could not be read.
   */
  readonly onEnded?: () => void;
  /**
   * Called before `run` throws, with a sentence for the `failureReason`. The sentence names
   * operations that could not be canceled. They may go on and leave data and snapshots.
   */
  readonly onUntold?: (text: string) => void;
  /** Aborted when this process stops leading, even after `signal`. Begin nothing then. */
  readonly leaving?: AbortSignal;
}

/** The status after a run. The files in the bucket have the same status already. */
export interface RunOutcome {
  /** `WaitingForPluginOperations` or `Finalizing`, or either with `PartiallyFailed`. */
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
  /** See {@link StoredArchive.marks}. */
  readonly marks?: StoredArchive['marks'];
  /** Size of the tarball, if this run made it. */
  readonly tarballBytes?: number;
}

export interface BackupRunner {
  /**
   * Throws an error with a sentence if the backup fails. Before that, it stores the log if it can,
   * and cancels the operations. Throws the reason of the signal. At a shutdown, everything stays
   * for the next server.
   */
  run(request: RunRequest): Promise<RunOutcome>;
  /**
   * Removes the journal once the CR has its phase. Publishes files that are not published yet.
   * Throws errors that are worth a retry.
   */
  forget(backup: Backup, options: Pick<RunRequest, 'signal' | 'assertLeading'>): Promise<void>;
}
