/** A volume that a backup or restore moves, as the page shows it. */
export interface PageVolume {
  readonly kind: string;
  readonly name: string;
  readonly uid: string;
  /** `namespace/claim`, or `namespace/pod/volume`. */
  readonly volume: string;
  readonly phase: string;
  /** The node whose agent looks after it; empty while it is nobody's. */
  readonly node: string;
  readonly ageSeconds: number;
  readonly bytesDone: number;
  /** 0 where it is not known yet. */
  readonly totalBytes: number;
  readonly isOver: boolean;
  /** In a sentence: what it waits for; of one that is over, how it ended. */
  readonly waitsFor: string;
  readonly bytesPerSecond: number | undefined;
  readonly secondsLeft: number | undefined;
  /** Since when it is over, in milliseconds since 1970. */
  readonly endedMs: number | undefined;
  readonly owner: VolumeOwner;
}

/**
 * The backup or restore that it is moved for, as its labels say: the name may be cut to the length
 * of a label.
 */
export interface VolumeOwner {
  readonly kind: 'Backup' | 'Restore';
  readonly name: string;
  readonly uid: string;
}

/** What was moved into one repository by all volumes that the cluster still knows. */
export interface MovedBytes {
  /** Of volumes whose agents said how much of them was new. */
  readonly totalBytes: number;
  readonly newBytes: number;
}

export interface VolumesNow {
  /** Oldest first. */
  readonly underWay: readonly PageVolume[];
  /** Of the last days, newest first, and no more than a page shows. */
  readonly failed: readonly PageVolume[];
  /** Nodes whose agents are running, sorted. */
  readonly agentNodes: readonly string[];
  /** By namespace and location: {@link repositoryKey}. */
  readonly moved: ReadonlyMap<string, MovedBytes>;
}

export const repositoryKey = (namespace: string, location: string): string =>
  `${namespace} ${location}`;

/** Where volumes are known from: one view that all visitors share. */
export interface VolumeSource {
  /** Until aborted. */
  run(signal: AbortSignal): Promise<void>;
  /** Undefined until they are known. */
  look(): Promise<VolumesNow | undefined>;
  /** All of one backup or restore, oldest first. */
  of(owner: VolumeOwner): readonly PageVolume[];
  /** Why what is shown may be old, in a sentence. */
  readonly outage: string | undefined;
}
