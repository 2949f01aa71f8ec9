import type { Logger } from '../../../base/index.ts';
import type { Restore } from '../../../kube/index.ts';
import type { VolumeSnapshotter } from '../../../plugin/index.ts';
import type { RestoreAction, RestoreProgress } from '../../../restore/index.ts';
import type { AskingSession } from '../../operations/plugin-progress.ts';

/**
 * Contracts of the restore controller. The controller decides when a Restore runs and writes its
 * phases. A runner makes one restore.
 */

/**
 * The actions for one restore: our own and those of plugins. Closing it ends the plugin processes.
 */
export interface RestoreSession extends AskingSession {
  /** RestoreItemActions v1 and v2 in Velero's order. Starts every plugin that has some. */
  loadActions(signal: AbortSignal): Promise<readonly RestoreAction[]>;
  /** Velero's VolumeSnapshotter of a provider. Throws `NO_SUCH_PLUGIN`. */
  snapshotter(provider: string, config: Readonly<Record<string, string>>): VolumeSnapshotter;
}

export interface RestoreSessions {
  /** `logger` gets the log of the plugins. Throws `PLUGIN_FOLDER`. */
  open(restore: Restore, logger: Logger): Promise<RestoreSession>;
}

export interface RestoreRequest {
  /** The CR in `InProgress`, after validation. */
  readonly restore: Restore;
  /** The BackupStorageLocation of its backup. */
  readonly location: string;
  /** Called at most once a second, never twice at once. */
  readonly onProgress: (progress: RestoreProgress) => Promise<void>;
  /** Runs a task that only waits. Other restores may run meanwhile. */
  readonly whileWaiting?: (task: () => Promise<void>) => Promise<void>;
  /** Called when the run takes over earlier work. If it fails, it ends that work itself. */
  readonly onBegin?: () => void;
  /** Called before `run` throws, if files could not be stored or published. */
  readonly onUnpublished?: () => void;
  /**
   * Called before `run` throws, with a sentence about uncanceled operations for `failureReason`.
   */
  readonly onUntold?: (text: string) => void;
  /** Called before each write that a second server must not repeat. Throws `LEADERSHIP_LOST`. */
  readonly assertLeading: () => void;
  /**
   * The reason is `CANCELED`. With `by: 'shutdown'` another server continues. With `by: 'user'` the
   * restore is canceled or deleted, and its operations are canceled too.
   */
  readonly signal: AbortSignal;
  /** Aborted when this process stops leading, even after `signal`. Begin nothing then. */
  readonly leaving?: AbortSignal;
}

/** The status after a run. The files in the bucket are stored already. */
export interface RestoreOutcome {
  /** `WaitingForPluginOperations` or `Finalizing`, or either with `PartiallyFailed`. */
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
}

export interface RestoreRunner {
  /**
   * Throws an error with a sentence if the restore fails. Before that, it stores the log if it can,
   * and cancels the operations. Throws the reason of the signal. At a shutdown, everything stays
   * for the next server.
   */
  run(request: RestoreRequest): Promise<RestoreOutcome>;
  /** Removes the journal once the CR has its phase. */
  forget(restore: Restore, location: string, signal: AbortSignal): Promise<void>;
  /**
   * Cancels the operations of a Restore that is deleted before its end, including those in its
   * journal. Throws errors of the bucket, and a sentence about operations that could not be
   * canceled.
   */
  end(restore: Restore, location: string, signal: AbortSignal): Promise<void>;
}
