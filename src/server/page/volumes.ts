/** A volume of a backup or restore. */
export interface PageVolume {
  readonly kind: string;
  readonly name: string;
  readonly uid: string;
  /** `namespace/claim`, or `namespace/pod/volume`. */
  readonly volume: string;
  readonly phase: string;
  /** The node of its agent; empty before an agent takes it. */
  readonly node: string;
  readonly ageSeconds: number;
  readonly bytesDone: number;
  /** 0 if unknown. */
  readonly totalBytes: number;
  readonly isOver: boolean;
  /** The reason of its wait, or its outcome, as a sentence. */
  readonly waitsFor: string;
  readonly bytesPerSecond: number | undefined;
  readonly secondsLeft: number | undefined;
  /** Its end in milliseconds since 1970. */
  readonly endedMs: number | undefined;
  readonly owner: VolumeOwner;
}

/**
 * The backup or restore of a volume, from its labels. The name may be cut to the length of a label.
 */
export interface VolumeOwner {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
  readonly uid: string;
}

/** Bytes that all known volumes moved into a repository. */
export interface MovedBytes {
  /** Only of volumes whose agents reported the share of new bytes. */
  readonly totalBytes: number;
  readonly newBytes: number;
}

export interface VolumesNow {
  /** Oldest first. */
  readonly underWay: readonly PageVolume[];
  /** Failures of the last days, newest first, limited to the size of a page. */
  readonly failed: readonly PageVolume[];
  /** Nodes with a running agent, sorted. */
  readonly agentNodes: readonly string[];
  /** Keyed by namespace and location: {@link repositoryKey}. */
  readonly moved: ReadonlyMap<string, MovedBytes>;
}

export const repositoryKey = (namespace: string, location: string): string =>
  `${namespace} ${location}`;

/** Provides the volumes. All visitors share a single view. */
export interface VolumeSource {
  /** Runs until aborted. */
  run(signal: AbortSignal): Promise<void>;
  /** Undefined until they are read. */
  look(): Promise<VolumesNow | undefined>;
  /** All volumes of a backup or restore, oldest first. */
  of(owner: VolumeOwner): readonly PageVolume[];
  /** Why the data may be outdated, as a sentence. */
  readonly outage: string | undefined;
}
