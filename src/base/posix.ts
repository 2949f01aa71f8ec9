import { createRequire } from 'node:module';
import { futimesSync, lutimesSync, utimesSync } from 'node:fs';
import type { Nanoseconds } from './clock.ts';
import { SECOND_NS } from './clock.ts';

/** The libc calls that Node lacks, through koffi (prebuilt). Each has a fallback, except for holes and syncfs. */
export interface Posix {
  /** Sets the modification time to the nanosecond, of a symlink itself when it is one. Throws like `fs`. */
  setModificationTime(path: string | Uint8Array, mtimeNs: Nanoseconds): void;
  /** The same for an open file. */
  setDescriptorTime(descriptor: number, mtimeNs: Nanoseconds): void;
  /** Start of the next data at or after the offset; undefined at the end; the offset itself where unknown. */
  seekData(descriptor: number, offset: number): number | undefined;
  /** Start of the next hole at or after the offset; undefined where unknown. */
  seekHole(descriptor: number, offset: number): number | undefined;
  /** Flushes the file system that the descriptor is on; false where it cannot be done. */
  syncFilesystem(descriptor: number): boolean;
  /** False: times are kept to the microsecond only and holes are not seen. */
  readonly native: boolean;
}

const SEEK_DATA = 3;
const SEEK_HOLE = 4;
const AT_FDCWD = -100;
const AT_SYMLINK_NOFOLLOW = 0x100;
const ENXIO = 6;

interface Koffi {
  load(path: string | null): { func(declaration: string): (...values: unknown[]) => number };
  errno(): number;
}

let loaded: Posix | undefined;

/** Loads on first use: 7 ms, then 3 us a call. */
export function posix(): Posix {
  loaded ??= loadPosix();
  return loaded;
}

function loadPosix(): Posix {
  try {
    if (process.platform !== 'linux') return fallback;
    return nativePosix(createRequire(import.meta.url)('koffi') as Koffi);
  } catch {
    return fallback;
  }
}

function systemError(syscall: string, errno: number): Error {
  const message = `${syscall} failed with errno ${errno}`;
  return Object.assign(new Error(message), { syscall, errno, code: `E${errno}` });
}

const times = new BigInt64Array(4);

/** Access and modification time as the kernel takes them; valid until the next call. */
function timesOf(mtimeNs: Nanoseconds): BigInt64Array {
  const seconds = mtimeNs / SECOND_NS - (mtimeNs % SECOND_NS < 0n ? 1n : 0n);
  times[0] = times[2] = seconds;
  times[1] = times[3] = mtimeNs - seconds * SECOND_NS;
  return times;
}

function nativePosix(koffi: Koffi): Posix {
  const libc = koffi.load('libc.so.6');
  const utimensat = libc.func(
    'int utimensat(int directory, const void *path, const int64_t *times, int flags)',
  );
  const futimens = libc.func('int futimens(int descriptor, const int64_t *times)');
  const lseek = libc.func('int64_t lseek(int descriptor, int64_t offset, int whence)');
  const syncfs = libc.func('int syncfs(int descriptor)');
  const seek = (descriptor: number, offset: number, whence: number): number | undefined => {
    const found = lseek(descriptor, offset, whence);
    return found >= 0 ? found : undefined;
  };
  return {
    native: true,
    setModificationTime: (path, mtimeNs) => {
      const text = Buffer.concat([Buffer.from(path as string), Buffer.of(0)]);
      if (utimensat(AT_FDCWD, text, timesOf(mtimeNs), AT_SYMLINK_NOFOLLOW) !== 0) {
        throw systemError('utimensat', koffi.errno());
      }
    },
    setDescriptorTime: (descriptor, mtimeNs) => {
      if (futimens(descriptor, timesOf(mtimeNs)) !== 0) {
        throw systemError('futimens', koffi.errno());
      }
    },
    seekData: (descriptor, offset) => {
      const found = seek(descriptor, offset, SEEK_DATA);
      if (found !== undefined) return found;
      return koffi.errno() === ENXIO ? undefined : offset;
    },
    seekHole: (descriptor, offset) => seek(descriptor, offset, SEEK_HOLE),
    syncFilesystem: (descriptor) => syncfs(descriptor) === 0,
  };
}

const fallback: Posix = {
  native: false,
  setModificationTime: (path, mtimeNs) => {
    const seconds = Number(mtimeNs / 1000n) / 1e6;
    const name = typeof path === 'string' ? path : Buffer.from(path);
    try {
      lutimesSync(name, seconds, seconds);
    } catch {
      utimesSync(name, seconds, seconds);
    }
  },
  setDescriptorTime: (descriptor, mtimeNs) => {
    const seconds = Number(mtimeNs / 1000n) / 1e6;
    futimesSync(descriptor, seconds, seconds);
  },
  seekData: (_descriptor, offset) => offset,
  seekHole: () => undefined,
  syncFilesystem: () => false,
};
