import { closeSync, constants, existsSync, openSync } from 'node:fs';
import type { NativeLibrary } from './native-status.ts';

/**
 * Calls for extended attributes, which Node lacks. Paths and names are bytes that end with a zero.
 * Not for the main thread: calls block.
 */
export interface AttributeCalls {
  /**
   * Attribute names of an entry in an open directory, each followed by a zero. Does not follow
   * links. Undefined if the file system has no extended attributes. Throws like `fs`.
   */
  listIn(directory: number, name: Uint8Array): Uint8Array | undefined;
  /** {@link listIn} for the entry of a descriptor, including `O_PATH` descriptors. */
  listOf(descriptor: number): Uint8Array | undefined;
  /** A value, or undefined if the attribute is missing. Throws like `fs`. */
  getIn(directory: number, name: Uint8Array, attribute: Uint8Array): Uint8Array | undefined;
  /** {@link getIn} for the entry of a descriptor. */
  getOf(descriptor: number, attribute: Uint8Array): Uint8Array | undefined;
  /** Throws like `fs`. */
  set(descriptor: number, attribute: Uint8Array, value: Uint8Array): void;
  /** Throws like `fs`. */
  remove(descriptor: number, attribute: Uint8Array): void;
}

/** Linux limits (include/uapi/linux/limits.h): XATTR_LIST_MAX and XATTR_SIZE_MAX. */
const LIST_BYTES_MAX = 64 << 10;
const VALUE_BYTES_MAX = 64 << 10;
/**
 * `listxattrat` of Linux 6.13, with the same number on every architecture. Halves the cost, because
 * no path is resolved.
 */
const SYS_LISTXATTRAT = 465;
const AT_SYMLINK_NOFOLLOW = 0x100;
const ENODATA = 61;
const EOPNOTSUPP = 95;

type ErrorOf = (syscall: string) => Error & { code: string; errno: number };

/** Undefined if the library lacks these calls, or without /proc, which they use. */
export function loadAttributeCalls(
  libc: NativeLibrary,
  errorOf: ErrorOf,
): AttributeCalls | undefined {
  if (!existsSync('/proc/self/fd')) return undefined;
  const listLink = libc.func(
    'int64_t llistxattr(const uint8_t *path, uint8_t *list, size_t length)',
  );
  const list = libc.func('int64_t listxattr(const uint8_t *path, uint8_t *list, size_t length)');
  const getLink = libc.func(
    'int64_t lgetxattr(const uint8_t *path, const uint8_t *name, uint8_t *value, size_t length)',
  );
  const get = libc.func(
    'int64_t getxattr(const uint8_t *path, const uint8_t *name, uint8_t *value, size_t length)',
  );
  const set = libc.func(
    'int setxattr(const uint8_t *path, const uint8_t *name, const uint8_t *value, size_t length, int flags)',
  );
  const remove = libc.func('int removexattr(const uint8_t *path, const uint8_t *name)');
  const listAt = libc.func(
    'int64_t syscall(int64_t number, int64_t directory, const uint8_t *path, int64_t flags, uint8_t *list, size_t length)',
  );
  const names = Buffer.alloc(LIST_BYTES_MAX);
  const value = Buffer.alloc(VALUE_BYTES_MAX);
  const found = (length: number, room: Buffer, call: string): Uint8Array | undefined => {
    if (length >= 0) return room.subarray(0, length);
    const error = errorOf(call);
    if (error.errno === EOPNOTSUPP || error.errno === ENODATA) return undefined;
    throw error;
  };
  let hasListAt: boolean | undefined;
  const isListAtThere = (): boolean => {
    const descriptor = openSync('/', constants.O_RDONLY | constants.O_DIRECTORY);
    try {
      return (
        listAt(SYS_LISTXATTRAT, descriptor, DOT, AT_SYMLINK_NOFOLLOW, names, names.length) >= 0
      );
    } finally {
      closeSync(descriptor);
    }
  };
  return {
    listIn: (directory, name) => {
      hasListAt ??= isListAtThere();
      const length = hasListAt
        ? listAt(SYS_LISTXATTRAT, directory, name, AT_SYMLINK_NOFOLLOW, names, names.length)
        : listLink(pathIn(directory, name), names, names.length);
      return found(length, names, 'listxattr');
    },
    listOf: (descriptor) =>
      found(list(pathOf(descriptor), names, names.length), names, 'listxattr'),
    getIn: (directory, name, attribute) => {
      const length = getLink(pathIn(directory, name), attribute, value, value.length);
      return found(length, value, 'getxattr');
    },
    getOf: (descriptor, attribute) =>
      found(get(pathOf(descriptor), attribute, value, value.length), value, 'getxattr'),
    set: (descriptor, attribute, bytes) => {
      if (set(pathOf(descriptor), attribute, bytes, bytes.length, 0) !== 0)
        throw errorOf('setxattr');
    },
    remove: (descriptor, attribute) => {
      if (remove(pathOf(descriptor), attribute) !== 0) throw errorOf('removexattr');
    },
  };
}

const DOT = Buffer.from('.\0');
const path = Buffer.alloc(512);
let pathStart = 0;
let pathDirectory: number | undefined;

/** A path to the descriptor's entry. If the entry is a link, does not follow it. */
const pathOf = (descriptor: number): Uint8Array => Buffer.from(`/proc/self/fd/${descriptor}\0`);

/** Valid until the next call. */
function pathIn(directory: number, name: Uint8Array): Uint8Array {
  if (name.length > path.length - 64) {
    return Buffer.concat([Buffer.from(`/proc/self/fd/${directory}/`), name]);
  }
  if (directory !== pathDirectory) {
    pathStart = path.write(`/proc/self/fd/${directory}/`);
    pathDirectory = directory;
  }
  path.set(name, pathStart);
  return path;
}
