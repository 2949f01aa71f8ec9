import type { FileEntry } from '../../server/index.ts';

/**
 * A file or directory of a volume in a backup, wherever its bytes are: in directories of a snapshot
 * (kopia-file.ts), or in a file system on a device (device-volume.ts). Reading throws what the
 * repository throws, and the reason of the signal.
 */
export interface VolumeFile {
  readonly entry: FileEntry;
  /** What whoever reads it should know, a sentence each. */
  readonly notes: readonly string[];
  /**
   * Whether a directory lists directories first, each kind by the bytes of names, however many it
   * has.
   */
  readonly isSorted: boolean;
  /** Bytes of the device, of the root of a raw volume: {@link bytes} gives them then. */
  readonly deviceBytes: number | undefined;
  /** Why it is only a part of what was to be backed up. */
  readonly incomplete: string | undefined;
  /**
   * What a directory has of this name. Throws `DEVICE_NOT_READ`, `DEVICE_DAMAGED` where nobody can
   * look into the device.
   */
  find(wanted: WantedName, signal: AbortSignal): Promise<VolumeFile | undefined>;
  /**
   * What is in a directory behind the first `skip`, some at a time. Damage in what is skipped may
   * be passed over.
   */
  list(signal: AbortSignal, skip?: number): AsyncIterable<readonly FileEntry[]>;
  /** It and everything below, parents first. */
  walk(signal: AbortSignal): AsyncIterable<WalkedFile>;
  /**
   * Of a file as many as its entry says, or what a symbolic link leads to. Throws
   * `SNAPSHOT_INCOMPLETE`.
   */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface WantedName {
  readonly name: string;
  /**
   * Which one, where several in a directory have the same name: bytes that are no UTF-8 are
   * replaced.
   */
  readonly id?: string | undefined;
}

export interface WalkedFile {
  readonly file: Pick<VolumeFile, 'entry' | 'bytes'>;
  /** Below where the walk began; '' of that itself. */
  readonly path: string;
  /** The same path as it is on disk. For where the walk began, its own name. */
  readonly diskPath: () => Uint8Array;
}
