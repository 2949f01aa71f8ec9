import { closeSync, constants, fstatSync, readSync } from 'node:fs';
import { messageOf } from '../base/index.ts';
import { toldCode } from './byte-path.ts';
import { openDirectly } from './open-directly.ts';

const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants;

/** A small file to read whole. `path` is bytes if the name is not UTF-8. */
export interface FileToRead {
  readonly path: string | Uint8Array;
  /** Expected bytes. No more are read, and `grew` reports it. */
  readonly sizeBytes: number;
}

/** The message if a pipe, a device or a socket has replaced a file. */
export const NO_LONGER_REGULAR = 'it is no longer a regular file';

export interface FileRead {
  /** Offset of the file's bytes in the slab. */
  readonly offset: number;
  readonly length: number;
  readonly hash: Uint8Array;
  /** The file had more bytes than expected: read it as a large one. */
  readonly grew: boolean;
  /** System error code and message of a failed read. */
  readonly error?: { code: string; message: string };
}

/** Reads a whole file into `room`, one byte longer than expected. Failures are in `error`. */
export function readFileInto(
  { path, sizeBytes }: FileToRead,
  room: Uint8Array,
): Pick<FileRead, 'length' | 'grew' | 'error'> {
  try {
    const descriptor = openDirectly(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    try {
      // The file may have been replaced since the listing, by a pipe or a device.
      if (!fstatSync(descriptor).isFile()) throw new Error(NO_LONGER_REGULAR);
      // A byte more than expected shows that the file grew.
      let length = 0;
      while (length <= sizeBytes) {
        const wanted = sizeBytes + 1 - length;
        const got = readSync(descriptor, room, length, wanted, null);
        length += got;
        // A short read is the end if the length matches the listing. Otherwise the file system may
        // return less at once.
        if (got === 0 || (got < wanted && length === sizeBytes)) break;
      }
      return length > sizeBytes ? { length: 0, grew: true } : { length, grew: false };
    } finally {
      closeSync(descriptor);
    }
  } catch (error) {
    return {
      length: 0,
      grew: false,
      error: { code: toldCode(error), message: messageOf(error) },
    };
  }
}
