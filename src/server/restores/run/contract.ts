import type { Logger } from '../../../base/index.ts';
import type { Restore } from '../../../kube/index.ts';
import type { VolumeSnapshotter } from '../../../plugin/index.ts';
import type { RestoreAction, RestoreProgress } from '../../../restore/index.ts';
import type { AskingSession } from '../../operations/session-asker.ts';

/**
 * What the controller of restores asks of others. It decides when a Restore runs and writes its
 * phases; a runner makes one restore.
 */

/**
 * The actions that one restore asks: those in this process and those of plugins, whose processes
 * end with the session.
 */
export interface RestoreSession extends AskingSession {
  /**
   * RestoreItemActions of both versions, in the order in which Velero runs them. Starts every
   * plugin that has some.
   */
  loadActions(signal: AbortSignal): Promise<readonly RestoreAction[]>;
  /** Velero's VolumeSnapshotter of a provider. Throws `NO_SUCH_PLUGIN`. */
  snapshotter(provider: string, config: Readonly<Record<string, string>>): VolumeSnapshotter;
}

export interface RestoreSessions {
  /** `logger`: for what plugins log of this restore. Throws `PLUGIN_FOLDER`. */
  open(restore: Restore, logger: Logger): Promise<RestoreSession>;
}

/** What a run is about. */
export interface RestoreRequest {
  /** As its CR is in `InProgress`: everything is decided in it. */
  readonly restore: Restore;
  /** The BackupStorageLocation that its backup is in. */
  readonly location: string;
  /** At most once a second, never two at once. */
  readonly onProgress: (progress: RestoreProgress) => Promise<void>;
  /** Around what the run only waits for: other restores may go on meanwhile. */
  readonly whileWaiting?: (task: () => Promise<void>) => Promise<void>;
  /** The run goes on with what earlier ones have begun, and ends it where it fails. */
  readonly onBegin?: () => void;
  /**
   * Before a run throws: its files could not all be stored, or not be published where their
   * location is written once.
   */
  readonly onUnpublished?: () => void;
  /** Before a run throws: a sentence about what could not be told to stop, for `failureReason`. */
  readonly onUntold?: (text: string) => void;
  /** Right before each write that must not be made by a second server. Throws `LEADERSHIP_LOST`. */
  readonly assertLeading: () => void;
  /**
   * Its reason is `CANCELED` with `by: 'shutdown'` where another server goes on, and `by: 'user'`
   * where the restore is canceled or deleted: then its operations are told to stop.
   */
  readonly signal: AbortSignal;
  /**
   * Aborted when this process's turn ends, whatever `signal` has said before: nothing more is begun
   * then.
   */
  readonly leaving?: AbortSignal;
}

/** What the CR says after a run. The files in the bucket were stored first. */
export interface RestoreOutcome {
  /** `WaitingForPluginOperations`, `Finalizing`, both with `PartiallyFailed`. */
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
}

/** Makes one restore. */
export interface RestoreRunner {
  /**
   * Throws what ends the restore as `Failed`, in a sentence; its log is stored as far as the bucket
   * is there, and its operations are told to stop. Throws the reason of the signal; for a shutdown
   * everything stays as another server needs it.
   */
  run(request: RestoreRequest): Promise<RestoreOutcome>;
  /** After the CR says how it ended: nobody needs the journal any more. */
  forget(restore: Restore, location: string, signal: AbortSignal): Promise<void>;
  /**
   * Of one that is deleted before its end: tells its operations to stop, also those that only its
   * journal names. Throws what the bucket throws, and a sentence about those that could not be
   * told.
   */
  end(restore: Restore, location: string, signal: AbortSignal): Promise<void>;
}
