import { createRequire } from 'node:module';
import { closeSync, constants, futimesSync, utimesSync } from 'node:fs';
import { getSystemErrorMessage, getSystemErrorName } from 'node:util';
import type { Nanoseconds } from '../clock.ts';
import { SECOND_NS } from '../clock.ts';
import { type AttributeCalls, loadAttributeCalls } from './native-xattrs.ts';
import { loadStatusReader, type NativeLibrary, type StatusReader } from './native-status.ts';
import { nameOfCode } from './system-errors.ts';

/** Libc calls that Node lacks, through koffi (prebuilt). Only holes and syncfs lack a fallback. */
export interface Posix {
  /** Sets the modification time of an open file to the nanosecond. Throws like `fs`. */
  setDescriptorTime(descriptor: number, mtimeNs: Nanoseconds): void;
  /** {@link setDescriptorTime} for any descriptor, including `O_PATH` of links. */
  setPinnedTime(descriptor: number, mtimeNs: Nanoseconds): void;
  /** Next data at or after the offset. Undefined at the end. The offset itself if unknown. */
  seekData(descriptor: number, offset: number): number | undefined;
  /** Start of the next hole at or after the offset. Undefined if unknown. */
  seekHole(descriptor: number, offset: number): number | undefined;
  /**
   * Flushes the descriptor's file system. Returns false if there is no such call. Throws like `fs`
   * if the disk lost writes since the descriptor was opened.
   */
  syncFilesystem(descriptor: number): boolean;
  /**
   * Opens an absolute path without symbolic links. The path ends with a zero. Undefined if the
   * kernel cannot check this. Throws like `fs`, and `ELOOP` if any part is a link. Not for the main
   * thread: calls block.
   */
  readonly openWithoutLinks: ((path: Uint8Array, flags: number) => number) | undefined;
  /** Cheap reader of many statuses. Undefined if it does not work here. Created on first use. */
  readonly statusReader: StatusReader | undefined;
  /** Extended attributes. Undefined without the native library. Created on first use. */
  readonly attributes: AttributeCalls | undefined;
  /**
   * Locks an open file or directory with `flock`, until its last descriptor is closed. Returns
   * false if a conflicting lock exists, undefined if the file system or machine has no locks.
   */
  tryLock(descriptor: number, how?: 'exclusive' | 'shared'): boolean | undefined;
  /** Makes the kernel read ahead a range of an open file. Does not wait for the data. */
  readAhead(descriptor: number, offset: number, lengthBytes: number): void;
  /** Bytes of a file range in the page cache. Undefined if the kernel does not tell. */
  cachedBytes(descriptor: number, offset: number, lengthBytes: number): number | undefined;
  /**
   * Renames a file, but never replaces one: throws `EEXIST`. Returns false without renaming if the
   * kernel or file system cannot do this. Not for the main thread: calls block. Throws like `fs`.
   */
  renameNew(from: string | Buffer, to: string | Buffer): boolean;
  /** Two entries take each other's name at once. False if the system cannot do it. */
  exchange(a: string | Buffer, b: string | Buffer): boolean;
  /**
   * Creates a FIFO or device node, whose type is in `mode`. Opens nothing. Returns false if there
   * is no such call. Not for the main thread: calls block. Throws like `fs`: `EPERM` without
   * permission.
   */
  makeNode(path: string | Buffer, mode: number, device: bigint): boolean;
  /** Requests huge pages for page-aligned, untouched memory. Ignored if there are none. */
  useHugePages(memory: Uint8Array): void;
  /** Functions of the program itself, such as Node's OpenSSL. Undefined if not callable. */
  readonly program: NativeLibrary | undefined;
  /** Ends the process, even if threads are blocked. Returns if this is impossible. */
  exitNow(code: number): void;
  /** If false, times have microseconds only and holes are invisible. */
  readonly native: boolean;
}

const SEEK_DATA = 3;
const SEEK_HOLE = 4;
const AT_FDCWD = -100;
/** `POSIX_FADV_WILLNEED`. */
const WILL_NEED = 3;
/** `MADV_HUGEPAGE`. */
const HUGE_PAGES = 14;
const ENXIO = 6;
/** `EWOULDBLOCK` has the same number. */
const EAGAIN = 11;
/** LOCK_SH, LOCK_EX, LOCK_NB (no wait): https://man7.org/linux/man-pages/man2/flock.2.html */
const LOCK_SHARED_NOW = 1 | 4;
const LOCK_EXCLUSIVE_NOW = 2 | 4;
/**
 * `openat2`, with the same number on every architecture:
 * https://man7.org/linux/man-pages/man2/openat2.2.html
 */
const SYS_OPENAT2 = 437;
const RESOLVE_NO_SYMLINKS = 4n;
/**
 * `cachestat` of Linux 6.5, with the same number on every architecture. Its two structures are in
 * include/uapi/linux/mman.h.
 */
const SYS_CACHESTAT = 451;
const CACHESTAT_NUMBERS = 5;
/** Missing in Node's constants. */
const O_CLOEXEC = 0o2000000;
/** Flags of `renameat2`: https://man7.org/linux/man-pages/man2/rename.2.html. NFS: `EINVAL`. */
const RENAME_NEW = 1;
const RENAME_EXCHANGE = 2;
const NO_RENAME_FLAGS = ['EINVAL', 'EOPNOTSUPP'];
/** Errors of a kernel or sandbox without this call. */
const NO_CALL = ['ENOSYS', 'EPERM'];

interface Koffi {
  load(path: string | null): NativeLibrary;
  errno(): number;
}

/**
 * A path to exactly the descriptor's file, even after a rename. For a symbolic link, leads to the
 * link itself. Use it for calls that reject `O_PATH` descriptors.
 */
export const pinnedPath = (descriptor: number): string => `/proc/self/fd/${descriptor}`;

let loaded: Posix | undefined;

/** Loads on first use: 7 ms, then 3 µs a call. */
export function posix(): Posix {
  loaded ??= loadPosix();
  return loaded;
}

/** Whether this process has loaded the native library. */
export const isPosixLoaded = (): boolean => loaded?.native === true;

function loadPosix(): Posix {
  try {
    if (process.platform !== 'linux') return fallback;
    return nativePosix(createRequire(import.meta.url)('koffi') as Koffi);
  } catch {
    return fallback;
  }
}

/** Worded like `fs` if there is a path. */
function systemError(
  syscall: string,
  errno: number,
  path = '',
): Error & { code: string; errno: number } {
  const code = nameOfCode(getSystemErrorName(-errno));
  const text = path
    ? `${code}: ${getSystemErrorMessage(-errno)}, ${syscall} '${path}'`
    : `${code}: ${syscall} failed`;
  return Object.assign(new Error(text), { syscall, errno, code });
}

const withZero = (path: string | Buffer): Buffer =>
  Buffer.concat([Buffer.from(path as string), Buffer.of(0)]);

const times = new BigInt64Array(4);

/** Access and modification time in the kernel's form. Valid until the next call. */
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
  const flock = libc.func('int flock(int descriptor, int operation)');
  const fadvise = libc.func(
    'int posix_fadvise(int descriptor, int64_t offset, int64_t length, int advice)',
  );
  const cachestat = libc.func(
    'int64_t syscall(int64_t number, int64_t descriptor, const uint64_t *range, uint64_t *found, uint64_t flags)',
  );
  const madvise = libc.func('int madvise(void *address, size_t length, int advice)');
  const renameat2 = libc.func(
    'int renameat2(int fromDirectory, const void *from, int toDirectory, const void *to, unsigned int flags)',
  );
  const rename = (from: string | Buffer, to: string | Buffer, flags: number): boolean => {
    const [old, taken] = [withZero(from), withZero(to)];
    if (renameat2(AT_FDCWD, old, AT_FDCWD, taken, flags) === 0) return true;
    const error = systemError('rename', koffi.errno(), String(to));
    if ([...NO_CALL, ...NO_RENAME_FLAGS].includes(error.code)) return false;
    throw error;
  };
  let makesNodes: { found: MakeNode | undefined } | undefined;
  const range = new BigUint64Array(2);
  const found = new BigUint64Array(CACHESTAT_NUMBERS);
  const pageBytes = libc.func('int getpagesize()')();
  const exit = libc.func('void _exit(int code)');
  const seek = (descriptor: number, offset: number, whence: number): number | undefined => {
    const found = lseek(descriptor, offset, whence);
    return found >= 0 ? found : undefined;
  };
  let opener: { found: Posix['openWithoutLinks'] } | undefined;
  let program: NativeLibrary | undefined;
  let reader: { found: StatusReader | undefined } | undefined;
  let attributes: AttributeCalls | undefined;
  return {
    native: true,
    get program() {
      program ??= koffi.load(null);
      return program;
    },
    get openWithoutLinks() {
      opener ??= { found: loadOpener(libc, koffi) };
      return opener.found;
    },
    get statusReader() {
      reader ??= { found: loadStatusReader(libc) };
      return reader.found;
    },
    get attributes() {
      attributes ??= loadAttributeCalls(libc, (call) => systemError(call, koffi.errno()));
      return attributes;
    },
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
    tryLock: (descriptor, how = 'exclusive') => {
      const operation = how === 'exclusive' ? LOCK_EXCLUSIVE_NOW : LOCK_SHARED_NOW;
      if (flock(descriptor, operation) === 0) return true;
      return koffi.errno() === EAGAIN ? false : undefined;
    },
    readAhead: (descriptor, offset, lengthBytes) => {
      fadvise(descriptor, offset, lengthBytes, WILL_NEED);
    },
    cachedBytes: (descriptor, offset, lengthBytes) => {
      range[0] = BigInt(offset);
      range[1] = BigInt(lengthBytes);
      if (cachestat(SYS_CACHESTAT, descriptor, range, found, 0n) !== 0) return undefined;
      return Number(found[0]) * pageBytes;
    },
    renameNew: (from, to) => rename(from, to, RENAME_NEW),
    exchange: (a, b) => rename(a, b, RENAME_EXCHANGE),
    makeNode: (path, mode, device) => {
      makesNodes ??= { found: loadMakeNode(libc) };
      const { found: mknod } = makesNodes;
      if (!mknod) return false;
      if (mknod(withZero(path), mode, device) === 0) return true;
      throw systemError('mknod', koffi.errno(), String(path));
    },
    useHugePages: (memory) => {
      madvise(memory, memory.length, HUGE_PAGES);
    },
    exitNow: (code) => void exit(code),
  };
}

type MakeNode = (path: Buffer, mode: number, device: bigint) => number;

/** Versions of glibc before 2.33 export the call under another name. */
function loadMakeNode(libc: NativeLibrary): MakeNode | undefined {
  try {
    return libc.func('int mknod(const void *path, unsigned int mode, uint64_t device)');
  } catch {
    // Try the other name below.
  }
  try {
    const mknod = libc.func(
      'int __xmknod(int version, const void *path, unsigned int mode, const uint64_t *device)',
    );
    return (path, mode, device) => mknod(0, path, mode, new BigUint64Array([device]));
  } catch {
    return undefined;
  }
}

/** Undefined if the kernel or its sandbox has no such call. */
function loadOpener(libc: NativeLibrary, koffi: Koffi): Posix['openWithoutLinks'] {
  const openat2 = libc.func(
    'int64_t syscall(int64_t number, int64_t directory, const uint8_t *path, const uint64_t *how, size_t length)',
  );
  const how = new BigUint64Array([0n, 0n, RESOLVE_NO_SYMLINKS]);
  const open = (path: Uint8Array, flags: number): number => {
    how[0] = BigInt(flags | O_CLOEXEC);
    const descriptor = openat2(SYS_OPENAT2, AT_FDCWD, path, how, how.byteLength);
    if (descriptor >= 0) return descriptor;
    throw systemError(
      'open',
      koffi.errno(),
      Buffer.from(path).toString('utf8', 0, path.length - 1),
    );
  };
  try {
    closeSync(open(Buffer.from('/\0'), constants.O_RDONLY));
    // /proc/self is a link, so opening it must fail.
    closeSync(open(Buffer.from('/proc/self\0'), constants.O_RDONLY));
  } catch (error) {
    return (error as { code?: string }).code === 'ELOOP' ? open : undefined;
  }
  return undefined;
}

const fallback: Posix = {
  native: false,
  program: undefined,
  openWithoutLinks: undefined,
  statusReader: undefined,
  attributes: undefined,
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
  tryLock: () => undefined,
  readAhead: () => undefined,
  cachedBytes: () => undefined,
  renameNew: () => false,
  exchange: () => false,
  makeNode: () => false,
  useHugePages: () => undefined,
  exitNow: () => undefined,
};
