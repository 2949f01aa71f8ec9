import type { Nanoseconds } from '../base/index.ts';

/** A name on a device: any text, chosen by the volume's users. Replaces bytes not in UTF-8. */
export interface DeviceEntry {
  /** The text of its bytes: see `textOfName`. */
  readonly name: string;
  /**
   * `d`, `f`, `s` for a symbolic link; `p`, `c`, `b`, `S` for objects without bytes, `?` if
   * unreadable.
   */
  readonly type: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** 0 for a directory. */
  readonly size: number;
  readonly mtimeNs: Nanoseconds;
  /** Distinguishes entries of the same name in a directory. */
  readonly id: string;
}

/**
 * A file or directory on a device. Reading throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ` and errors of
 * the device.
 */
export interface DeviceFile {
  readonly entry: DeviceEntry;
  /** Warnings for readers, one sentence each. */
  readonly notes: readonly string[];
  /** The directory's entry of this name. */
  find(
    wanted: { readonly name: string; readonly id?: string | undefined },
    signal: AbortSignal,
  ): Promise<DeviceFile | undefined>;
  /** Entries of a directory in batches, in stored order. */
  list(signal: AbortSignal): AsyncIterable<readonly DeviceEntry[]>;
  /** The file itself and everything below, parents first. */
  walk(signal: AbortSignal): AsyncIterable<WalkedFile>;
  /** A file's bytes, or a link's target. Do not write into them. Empty for other types. */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface WalkedFile {
  readonly file: DeviceFile;
  /** Relative to the start of the walk; '' for the start itself. */
  readonly path: string;
}
