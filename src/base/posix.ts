import { createRequire } from 'node:module';
import { futimesSync, utimesSync } from 'node:fs';
import { getSystemErrorName } from 'node:util';
import type { Nanoseconds } from './clock.ts';
import { SECOND_NS } from './clock.ts';
import { nameOfCode } from './system-errors.ts';

/** The libc calls that Node lacks, through koffi (prebuilt). Each has a fallback, except for holes and syncfs. */
export interface Posix {
  /** Sets the modification time of an open file to the nanosecond. Throws like `fs`. */
  setDescriptorTime(descriptor: number, mtimeNs: Nanoseconds): void;
  /** The same for a descriptor of any kind, also one that `O_PATH` opened: of a symlink itself, of a directory. */
  setPinnedTime(descriptor: number, mtimeNs: Nanoseconds): void;
  /** Start of the next data at or after the offset; undefined at the end; the offset itself where unknown. */
  seekData(descriptor: number, offset: number): number | undefined;
  /** Start of the next hole at or after the offset; undefined where unknown. */
  seekHole(descriptor: number, offset: number): number | undefined;
  /**
   * Flushes the file system that the descriptor is on; false where that cannot be asked for. Throws like `fs` when the disk did
   * not take all that was written since the descriptor was opened.
   */
  syncFilesystem(descriptor: number): boolean;
  /** Ends the process whatever its threads do; returns where it cannot be done. */
  exitNow(code: number): void;
  /** False: times are kept to the microsecond only and holes are not seen. */
  readonly native: boolean;
}

const SEEK_DATA = 3;
const SEEK_HOLE = 4;
const AT_FDCWD = -100;
const ENXIO = 6;
/** How a kernel or its sandbox says that it has no such call. */
const NO_CALL = ['ENOSYS', 'EPERM'];

interface Koffi {
  load(path: string | null): { func(declaration: string): (...values: unknown[]) => number };
  errno(): number;
}

/**
 * Leads to exactly what the descriptor is of, wherever it lies by now; when that is a symlink, to the link and no
 * further. Calls that take no descriptor of `O_PATH` take this.
 */
export const pinnedPath = (descriptor: number): string => `/proc/self/fd/${descriptor}`;

let loaded: Posix | undefined;

/** Loads on first use: 7 ms, then 3 us a call. */
export function posix(): Posix {
  loaded ??= loadPosix();
  return loaded;
}

/** Whether this process has the native library in it. */
export const isPosixLoaded = (): boolean => loaded?.native === true;

function loadPosix(): Posix {
  try {
    if (process.platform !== 'linux') return fallback;
    return nativePosix(createRequire(import.meta.url)('koffi') as Koffi);
  } catch {
    return fallback;
  }
}

function systemError(syscall: string, errno: number): Error & { code: string } {
  const code = nameOfCode(getSystemErrorName(-errno));
  return Object.assign(new Error(`${code}: ${syscall} failed`), { syscall, errno, code });
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
  const exit = libc.func('void _exit(int code)');
  const seek = (descriptor: number, offset: number, whence: number): number | undefined => {
    const found = lseek(descriptor, offset, whence);
    return found >= 0 ? found : undefined;
  };
  return {
    native: true,
    setPinnedTime: (descriptor, mtimeNs) => {
      const path = Buffer.from(`${pinnedPath(descriptor)}\0`);
      if (utimensat(AT_FDCWD, path, timesOf(mtimeNs), 0) !== 0) {
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
    syncFilesystem: (descriptor) => {
      if (syncfs(descriptor) === 0) return true;
      const error = systemError('syncfs', koffi.errno());
      if (NO_CALL.includes(error.code)) return false;
      throw error;
    },
    exitNow: (code) => void exit(code),
  };
}

const fallback: Posix = {
  native: false,
  setDescriptorTime: (descriptor, mtimeNs) => {
    const seconds = Number(mtimeNs / 1000n) / 1e6;
    futimesSync(descriptor, seconds, seconds);
  },
  setPinnedTime: (descriptor, mtimeNs) => {
    const seconds = Number(mtimeNs / 1000n) / 1e6;
    utimesSync(pinnedPath(descriptor), seconds, seconds);
  },
  seekData: (_descriptor, offset) => offset,
  seekHole: () => undefined,
  syncFilesystem: () => false,
  exitNow: () => undefined,
};
