import type { RestoreRef } from '../../archive/index.ts';
import type { Logger } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { BackupAction, BlockAction, Progress } from '../../backup/index.ts';
import type { OperationAsker } from '../../item-operations/index.ts';
import type { Backup } from '../../kube/index.ts';
import type { VolumeSnapshotter } from '../../plugin/index.ts';
import type { RestoreBucket } from '../restores/files/restore-bucket.ts';

/**
 * What the controllers of backups ask of each other. The backup controller decides when a Backup
 * runs and writes its phases; a runner makes one backup, from the first item to its files in the
 * bucket; sessions reach the actions of plugins; volumes are what is done beside the objects.
 */

/** The storage of a location, by the credentials of now. Whoever opens it closes it. */
export interface OpenBucket extends AsyncDisposable {
  readonly bucket: Bucket;
  /**
   * If it was opened for a Restore: whose files are in the bucket, and which ones the cluster
   * keeps.
   */
  readonly files?: Pick<RestoreBucket, 'claim' | 'upload' | 'deleteKept' | 'assertInBucket'>;
}

export interface Buckets {
  /**
   * `location` is the name of a BackupStorageLocation. For a Restore, files that the bucket refuses
   * are kept in the cluster. Throws `NO_LOCATION` if there is none, and errors of the API server
   * and the storage.
   */
  open(location: string, signal: AbortSignal, restore?: RestoreRef): Promise<OpenBucket>;
}

/**
 * The actions that one backup asks: our own in this process, and those of plugins, whose processes
 * end with the session.
 */
export interface ActionSession extends AsyncDisposable {
  /** In the order in which Velero runs them. Starts every plugin that has some. */
  loadActions(signal: AbortSignal): Promise<{
    readonly actions: readonly BackupAction[];
    readonly blockActions: readonly BlockAction[];
  }>;
  /** About operations of this backup, also of those that an earlier server began. */
  readonly asker: OperationAsker;
  /** Velero's VolumeSnapshotter of a provider. Throws `NO_SUCH_PLUGIN`. */
  snapshotter(provider: string, config: Readonly<Record<string, string>>): VolumeSnapshotter;
}

export interface ActionSessions {
  /**
   * `logger`: what plugins log is of this backup, and their errors and warnings count as its own.
   * Throws `PLUGIN_FOLDER`.
   */
  open(backup: Backup, logger: Logger): Promise<ActionSession>;
}

/** What a run is about. */
export interface RunRequest {
  /** As its CR is in `InProgress`: everything is decided in it. */
  readonly backup: Backup;
  /** At most once a second, never two at once. */
  readonly onProgress: (progress: Progress) => Promise<void>;
  /** Right before each write that must not be made by a second server. Throws `LEADERSHIP_LOST`. */
  readonly assertLeading: () => void;
  /**
   * Its reason is `CANCELED` with `by: 'shutdown'` where another server goes on, and any other one
   * where the backup is canceled or deleted: then its operations are told to stop.
   */
  readonly signal: AbortSignal;
  /**
   * Of a run that throws: all that it and earlier ones have begun is told to end. Not called where
   * that could not be done, as where the journal could not be read.
   */
  readonly onEnded?: () => void;
  /**
   * Of a run that throws: a sentence that names operations that could not be told to stop, for the
   * `failureReason`. They may go on, and keep data and snapshots that nobody needs.
   */
  readonly onUntold?: (text: string) => void;
  /**
   * Aborted when this process's turn ends, whatever `signal` has said before: nothing more is begun
   * then.
   */
  readonly leaving?: AbortSignal;
}

/** What the CR says after a run. The files in the bucket say the same, and were stored first. */
export interface RunOutcome {
  /** `WaitingForPluginOperations`, `Finalizing`, both with `PartiallyFailed`. */
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
  /** The stored files are signed. */
  readonly isSigned?: boolean;
  /** Of its tarball, where this run has made it. */
  readonly tarballBytes?: number;
}

/** Makes one backup. */
export interface BackupRunner {
  /**
   * Throws what ends the backup as `Failed`, in a sentence; its log and what it began are stored as
   * far as the bucket is there, and its operations are told to stop. Throws the reason of the
   * signal; for a shutdown everything stays as another server needs it.
   */
  run(request: RunRequest): Promise<RunOutcome>;
  /**
   * After the CR says how it ended: nobody needs the journal any more, and files that were not all
   * published are. Throws what is worth another try.
   */
  forget(backup: Backup, options: Pick<RunRequest, 'signal' | 'assertLeading'>): Promise<void>;
}
