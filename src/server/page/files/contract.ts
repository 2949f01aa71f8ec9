import type { Nanoseconds } from '../../../base/index.ts';

/** Which backup, and the location that it is in. */
export interface BrowsedBackup {
  readonly name: string;
  readonly uid: string;
  readonly location: string;
}

/** A volume of a backup, as `longshore browse` names it. */
export interface BrowsedVolume {
  readonly name: string;
  /** How it was backed up, in words. */
  readonly how: string;
  readonly bytes: number | undefined;
  /** Why nobody can look into it; undefined where its files can be listed. */
  readonly why: string | undefined;
}

/**
 * A name in a volume. Whoever could write to the volume or to the repository chose it: it may be
 * any text.
 */
export interface FileEntry {
  readonly name: string;
  /** `d`, `f`, `s` for a symbolic link; any other is neither listed further nor downloaded. */
  readonly type: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** Of a directory all that is below it. */
  readonly sizeBytes: number;
  readonly mtimeNs: Nanoseconds;
  /** Which one, where several in a directory have the same name. */
  readonly objectId: string;
}

/** A place in a volume of a backup. */
export interface FilePlace {
  readonly volume: string;
  /** Names from the volume's root on. */
  readonly path: readonly string[];
  /**
   * Which one, where several in a directory have the same name: Kopia replaces bytes that are no
   * UTF-8.
   */
  readonly objectId?: string | undefined;
}

/** A directory or file that was found. It holds the repository open until it is disposed of. */
export interface OpenEntry extends Disposable {
  readonly entry: FileEntry;
  /** What whoever reads it should know, a sentence each. */
  readonly notes: readonly string[];
  /** Of the root of a raw volume, which can be downloaded as the device that it is, too. */
  readonly deviceBytes: number | undefined;
  /**
   * Whether {@link list} has directories first, each kind by the bytes of its names; else it is in
   * no order where there are too many to sort.
   */
  readonly isSorted: boolean;
  /**
   * What is in a directory behind the first `skip`, some at a time. Throws what the repository
   * throws, and for devices `DEVICE_DAMAGED`, `DEVICE_NOT_READ`; damage in what is skipped may be
   * passed over.
   */
  list(signal: AbortSignal, skip?: number): AsyncIterable<readonly FileEntry[]>;
  /**
   * What a symbolic link leads to, or the bytes of a file, a part at a time. Throws
   * `SNAPSHOT_INCOMPLETE`, and what the repository throws.
   */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
  /**
   * It and all that is below, as a tar archive without devices, pipes and sockets. Throws like
   * {@link bytes}; whoever unpacks the archive notices.
   */
  tar(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

/** Where the page has the files of backups from. */
export interface BackupFiles {
  /** Throws `NO_LOCATION`, and what the API server and the bucket throw. */
  volumesOf(backup: BrowsedBackup, signal: AbortSignal): Promise<readonly BrowsedVolume[]>;
  /**
   * Throws `NO_VOLUME`, `NOT_BROWSABLE`, `PATH_NOT_FOUND`, `SNAPSHOT_NOT_FOUND`,
   * `REPOSITORIES_BUSY`, and what the API server, the bucket and the repository throw.
   */
  open(backup: BrowsedBackup, place: FilePlace, signal: AbortSignal): Promise<OpenEntry>;
}
