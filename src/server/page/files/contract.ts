import type { Nanoseconds } from '../../../base/index.ts';

/** A backup and its location. */
export interface BrowsedBackup {
  readonly name: string;
  readonly uid: string;
  readonly location: string;
}

/** A volume of a backup, as in `longshore browse`. */
export interface BrowsedVolume {
  readonly name: string;
  /** The method of its backup, in words. */
  readonly how: string;
  readonly bytes: number | undefined;
  /** Why its files cannot be listed; undefined if they can. */
  readonly why: string | undefined;
}

/** A name in a volume: any text, because anyone who can write there chooses it. */
export interface FileEntry {
  readonly name: string;
  /** `d`, `f`, or `s` for a symbolic link. Other types can be neither listed nor downloaded. */
  readonly type: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** For a directory: the total of its contents. */
  readonly sizeBytes: number;
  readonly mtimeNs: Nanoseconds;
  /** Distinguishes equal names in a directory. */
  readonly objectId: string;
}

/** A place in a volume of a backup. */
export interface FilePlace {
  readonly volume: string;
  /** Names from the volume's root. */
  readonly path: readonly string[];
  /** Distinguishes equal names in a directory: Kopia replaces bytes that are not UTF-8. */
  readonly objectId?: string | undefined;
}

/** An open directory or file. Keeps the repository open until it is disposed. */
export interface OpenEntry extends Disposable {
  readonly entry: FileEntry;
  /** Remarks for the reader, as sentences. */
  readonly notes: readonly string[];
  /** For the root of a raw volume: the size of the device, which can be downloaded. */
  readonly deviceBytes: number | undefined;
  /**
   * Whether {@link list} is sorted: directories first, then by the bytes of names. Long directories
   * may be unsorted.
   */
  readonly isSorted: boolean;
  /**
   * Lists a directory after the first `skip` entries, in batches. Throws errors of the repository,
   * and for devices `DEVICE_DAMAGED` and `DEVICE_NOT_READ`. Damage in skipped entries may go
   * unnoticed.
   */
  list(signal: AbortSignal, skip?: number): AsyncIterable<readonly FileEntry[]>;
  /** The target of a link, or a file's bytes. Throws `SNAPSHOT_INCOMPLETE`, repository errors. */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
  /**
   * A tar archive of the entry and its contents, without devices, pipes and sockets. Throws like
   * {@link bytes}; a reader of the archive then notices the cut.
   */
  tar(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

/** Reads files of backups for the page. */
export interface BackupFiles {
  /** Throws `NO_LOCATION`, and errors of the API server and the bucket. */
  volumesOf(backup: BrowsedBackup, signal: AbortSignal): Promise<readonly BrowsedVolume[]>;
  /**
   * Throws `NO_VOLUME`, `NOT_BROWSABLE`, `PATH_NOT_FOUND`, `SNAPSHOT_NOT_FOUND`,
   * `REPOSITORIES_BUSY`, and errors of the API server, the bucket and the repository.
   */
  open(backup: BrowsedBackup, place: FilePlace, signal: AbortSignal): Promise<OpenEntry>;
}
