import type { BackupVolumeInfo, NativeSnapshot } from '../archive/index.ts';
import type { VolumeSteps } from '../backup/index.ts';
import type { KubeObject } from '../kube/index.ts';
import type { VolumeSnapshotter } from '../plugin/index.ts';

/** Facts about volumes when all items of a backup are done. */
export interface VolumeOutcome {
  readonly nativeSnapshots: readonly NativeSnapshot[];
  /** Their current state: the finalizer stores unfinished ones again. */
  readonly podVolumeBackups: readonly KubeObject[];
  readonly volumeInfos: readonly BackupVolumeInfo[];
  /** Number of VolumeSnapshots of this backup that stay in the storage. */
  readonly csiSnapshots: number;
}

/** A completed step for a volume, as JSON that only the implementation reads. */
export type VolumeFact = Readonly<Record<string, unknown>>;

/** Volumes of one backup: policies, native snapshots, PodVolumeBackups and their records. */
export interface BackupVolumes extends VolumeSteps {
  /**
   * Restores the steps of an earlier try, in the order of the sink: `FinishedItem.facts` of each
   * item. Call it once, before any step.
   */
  resume(facts: readonly VolumeFact[]): void;
  /** Snapshots taken so far. If the backup fails or is canceled, the caller must delete them. */
  readonly nativeSnapshots: readonly NativeSnapshot[];
  /** Call it after the last item. `uploads`: operations with their DataUploads. */
  outcome(uploads: readonly UploadOperation[], signal: AbortSignal): Promise<VolumeOutcome>;
}

/** An operation that moves the volume of a PVC or waits for its snapshot. */
export interface UploadOperation {
  readonly operationId: string;
  readonly item: { readonly resource: string; readonly namespace: string; readonly name: string };
  readonly upload: { readonly namespace: string; readonly name: string } | undefined;
}

/** A snapshot request to a provider. */
export interface AskedSnapshot {
  /** Name of the PersistentVolume. */
  readonly pv: string;
  /** Volume ID at the provider. */
  readonly volume: string;
  /** Name of the VolumeSnapshotLocation. */
  readonly location: string;
}

export type Snapshotters = (
  provider: string,
  config: Readonly<Record<string, string>>,
) => VolumeSnapshotter;
