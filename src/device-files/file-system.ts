import type { Nanoseconds } from '../base/index.ts';

/**
 * A name on a device. Whoever could write to the volume chose it: it may be any text, bytes that
 * are no UTF-8 replaced.
 */
export interface DeviceEntry {
  /** The text of its bytes: see `textOfName`. */
  readonly name: string;
  /**
   * `d`, `f`, `s` for a symbolic link; `p`, `c`, `b`, `S` for what has no bytes, `?` for what
   * cannot be read.
   */
  readonly type: string;
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  /** Of a directory 0. */
  readonly size: number;
  readonly mtimeNs: Nanoseconds;
  /** Which one, where several in a directory have the same name. */
  readonly id: string;
}

/**
 * A file or directory on a device. Reading throws `DEVICE_DAMAGED`, `DEVICE_NOT_READ`, and what the
 * device throws.
 */
export interface DeviceFile {
  readonly entry: DeviceEntry;
  /** What whoever reads it should know, a sentence each. */
  readonly notes: readonly string[];
  /** What a directory has of this name. */
  find(
    wanted: { readonly name: string; readonly id?: string | undefined },
    signal: AbortSignal,
  ): Promise<DeviceFile | undefined>;
  /** What is in a directory, some at a time, as it is stored. */
  list(signal: AbortSignal): AsyncIterable<readonly DeviceEntry[]>;
  /** It and everything below, parents first. */
  walk(signal: AbortSignal): AsyncIterable<WalkedFile>;
  /**
   * Of a file, or what a symbolic link leads to. Nobody may write into them. None of what has no
   * bytes.
   */
  bytes(signal: AbortSignal): AsyncIterable<Uint8Array>;
}

export interface WalkedFile {
  readonly file: DeviceFile;
  /** Below where the walk began; '' of that itself. */
  readonly path: string;
}
