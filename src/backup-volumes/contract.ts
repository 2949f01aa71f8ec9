import type { BackupVolumeInfo, NativeSnapshot } from '../archive/index.ts';
import type { VolumeSteps } from '../backup/index.ts';
import type { KubeObject } from '../kube/index.ts';
import type { VolumeSnapshotter } from '../plugin/index.ts';

/** What is known of volumes when a backup's items are done. */
export interface VolumeOutcome {
  readonly nativeSnapshots: readonly NativeSnapshot[];
  /** As they are then: those that are not over are stored anew by the finalizer. */
  readonly podVolumeBackups: readonly KubeObject[];
  readonly volumeInfos: readonly BackupVolumeInfo[];
  /** VolumeSnapshots of this backup, which stay where they are. */
  readonly csiSnapshots: number;
}

/** One thing that was done about a volume, as JSON that only the volumes themselves read. */
export type VolumeFact = Readonly<Record<string, unknown>>;

/**
 * Volumes of one backup: policies, native snapshots, PodVolumeBackups, and what is told of each.
 */
export interface BackupVolumes extends VolumeSteps {
  /**
   * What an earlier try of this backup did, in the order in which it was put into the sink:
   * `FinishedItem.facts` of each item. Called once, before any step.
   */
  resume(facts: readonly VolumeFact[]): void;
  /**
   * Those that are there so far: of a backup that fails or is canceled, too, somebody has to delete
   * them.
   */
  readonly nativeSnapshots: readonly NativeSnapshot[];
  /** After the last item. `uploads`: DataUploads that operations name, with their operations. */
  outcome(uploads: readonly UploadOperation[], signal: AbortSignal): Promise<VolumeOutcome>;
}

/** An operation that moves the volume of a PVC, or waits for its snapshot. */
export interface UploadOperation {
  readonly operationId: string;
  readonly item: { readonly resource: string; readonly namespace: string; readonly name: string };
  readonly upload: { readonly namespace: string; readonly name: string } | undefined;
}

/** A snapshot that a provider is asked for. */
export interface AskedSnapshot {
  /** Name of the PersistentVolume. */
  readonly pv: string;
  /** Its id with the provider. */
  readonly volume: string;
  /** Name of the VolumeSnapshotLocation. */
  readonly location: string;
}

export type Snapshotters = (
  provider: string,
  config: Readonly<Record<string, string>>,
) => VolumeSnapshotter;
