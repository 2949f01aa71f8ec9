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
  /**
   * Whether a directory lists directories first, and each kind by the bytes of names, at any size.
   */
  readonly isSorted: boolean;
  /**
   * Size of the device. Set for the root of a raw volume, whose {@link bytes} are those of the
   * device.
   */
  readonly deviceBytes: number | undefined;
  /** Why the snapshot contains only a part of the volume. */
  readonly incomplete: string | undefined;
  /**
   * Finds an entry of a directory. Throws `DEVICE_NOT_READ` or `DEVICE_DAMAGED` for an unreadable
   * device.
   */
  find(wanted: WantedName, signal: AbortSignal): Promise<VolumeFile | undefined>;
  /**
   * Lists a directory in parts, without the first `skip` entries. Damage in skipped entries may go
   * unnoticed.
   */
  list(signal: AbortSignal, skip?: number): AsyncIterable<readonly FileEntry[]>;
  /** The entry and all entries below it, parents first. */
  walk(signal: AbortSignal): AsyncIterable<WalkedFile>;
  /**
   * The bytes of a file, as many as its entry says, or the target of a symbolic link. Throws
   * `SNAPSHOT_INCOMPLETE`.
   */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface WantedName {
  readonly name: string;
  /**
   * Selects one of several entries with the same name. Names can collide because invalid UTF-8 is
   * replaced.
   */
  readonly id?: string | undefined;
}

export interface WalkedFile {
  readonly file: Pick<VolumeFile, 'entry' | 'bytes'>;
  /** Relative to the start of the walk, which is ''. */
  readonly path: string;
  /** The same path with the bytes on disk. For the start of the walk, its own name. */
  readonly diskPath: () => Uint8Array;
}
