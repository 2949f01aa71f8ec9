import type { FileEntry } from '../../server/index.ts';

/**
 * A file or directory of a volume in a backup. Its bytes are in a snapshot of directories
 * (kopia-file.ts), or in a file system on a device (device-volume.ts). Reading throws errors of the
 * repository, and the reason of the signal.
 */
export interface VolumeFile {
  readonly entry: FileEntry;
  /** Notes for the reader, one sentence each. */
  readonly notes: readonly string[];
  /** Whether directories come first, and each kind in order of the bytes of names. */
  readonly isSorted: boolean;
  /** Size of the device, for the root of a raw volume. {@link bytes} then reads the device. */
  readonly deviceBytes: number | undefined;
  /** Why the snapshot contains only a part of the volume. */
  readonly incomplete: string | undefined;
  /** Throws `DEVICE_NOT_READ` or `DEVICE_DAMAGED` for an unreadable device. */
  find(wanted: WantedName, signal: AbortSignal): Promise<VolumeFile | undefined>;
  /** Skips the first `skip` entries. Damage in skipped entries may go unnoticed. */
  list(signal: AbortSignal, skip?: number): AsyncIterable<readonly FileEntry[]>;
  /** The entry and all entries below it, parents first. */
  walk(signal: AbortSignal): AsyncIterable<WalkedFile>;
  /** Bytes of a file, or the target of a symbolic link. Throws `SNAPSHOT_INCOMPLETE`. */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface WantedName {
  readonly name: string;
  /** Selects one of several entries whose invalid UTF-8 gives them the same name. */
  readonly id?: string | undefined;
}

export interface WalkedFile {
  readonly file: Pick<VolumeFile, 'entry' | 'bytes'>;
  /** Relative to the start of the walk, which is ''. */
  readonly path: string;
  /** The same path with the bytes on disk. For the start of the walk, its own name. */
  readonly diskPath: () => Uint8Array;
}
