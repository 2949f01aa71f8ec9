import type { Logger } from '../../base/index.ts';
import type { Bucket } from '../../blob/index.ts';
import type { BackupVolumeInfo, NativeSnapshot } from '../../archive/index.ts';
import type {
  Backup,
  BackupAction,
  BackupLog,
  BlockAction,
  Progress,
  VolumeSteps,
} from '../../backup/index.ts';
import type { OperationAsker } from '../../item-operations/index.ts';
import type { KubeObject } from '../../kube/index.ts';

/**
 * What the controllers of backups ask of each other. The backup controller decides when a Backup runs and writes its phases; a runner
 * makes one backup, from the first item to its files in the bucket; sessions reach the actions of plugins; volumes are what is done
 * beside the objects.
 */

/** The storage of a location, by the credentials of now. Whoever opens it closes it. */
export interface OpenBucket extends AsyncDisposable {
  readonly bucket: Bucket;
}

export interface Buckets {
  /**
   * By the name of a BackupStorageLocation. Throws `NO_LOCATION` where there is none, and what the API server and the storage throw.
   */
  open(location: string, signal: AbortSignal): Promise<OpenBucket>;
}

/** The actions that one backup asks: our own in this process, and those of plugins, whose processes end with the session. */
export interface ActionSession extends AsyncDisposable {
  /** In the order in which Velero runs them. */
  readonly actions: readonly BackupAction[];
  readonly blockActions: readonly BlockAction[];
  /** About operations of this backup, also of those that an earlier server began. */
  readonly asker: OperationAsker;
}

export interface ActionSessions {
  /** `logger`: what plugins log is of this backup, and their errors and warnings count as its own. Throws `PLUGIN_FOLDER`. */
  open(backup: Backup, logger: Logger, signal: AbortSignal): Promise<ActionSession>;
}

/** What is known of volumes when a backup's items are done. */
export interface VolumeOutcome {
  readonly nativeSnapshots: readonly NativeSnapshot[];
  /** As they are then: those that are not over are stored anew by the finalizer. */
  readonly podVolumeBackups: readonly KubeObject[];
  readonly volumeInfos: readonly BackupVolumeInfo[];
}

/** Volumes of one backup: policies, native snapshots, PodVolumeBackups, and what is told of each. */
export interface BackupVolumes extends VolumeSteps, AsyncDisposable {
  /**
   * What an earlier try of this backup did, in the order in which it was put into the sink: `FinishedItem.facts` of each item. Called
   * once, before any step.
   */
  resume(facts: readonly VolumeFact[]): Promise<void>;
  /** After the last item. */
  outcome(signal: AbortSignal): Promise<VolumeOutcome>;
}

/** One thing that was done about a volume, as JSON that only the volumes themselves read. */
export type VolumeFact = Readonly<Record<string, unknown>>;

/** How often a backup has been tried, and with whom it deals. */
export interface RunRequest {
  /** As its CR is in `InProgress`: everything is decided in it. */
  readonly backup: Backup;
  /** Whether an earlier server had begun it: its journal is read, and what is in it is not done again. */
  readonly isContinued: boolean;
  /** At most once a second, never two at once. */
  readonly onProgress: (progress: Progress) => Promise<void>;
  /** Right before each write that must not be made by a second server. Throws `NOT_LEADING`. */
  readonly assertLeading: () => void;
  /**
   * Its reason is `CANCELED` with `by: 'shutdown'` where another server goes on, and any other one where the backup is canceled or
   * deleted: then its operations are told to stop.
   */
  readonly signal: AbortSignal;
}

/** What the CR says after a run. The files in the bucket say the same, and were stored first. */
export interface RunOutcome {
  /** `WaitingForPluginOperations`, `Finalizing`, both with `PartiallyFailed`. */
  readonly phase: string;
  readonly status: Readonly<Record<string, unknown>>;
}

/** Makes one backup. */
export interface BackupRunner {
  /**
   * Throws what ends the backup as `Failed`, in a sentence; its log and what it began are stored as far as the bucket is there, and its
   * operations are told to stop. Throws the reason of the signal; for a shutdown everything stays as another server needs it.
   */
  run(request: RunRequest): Promise<RunOutcome>;
}

/** What the log of a backup is for one run: lines for the file, warnings and errors for the results. */
export interface RunLog extends BackupLog {
  readonly warningCount: number;
  readonly errorCount: number;
}
