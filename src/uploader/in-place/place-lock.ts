import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { dirname } from 'node:path';
import { CodedError, posix, printable } from '../../base/index.ts';

const { O_RDONLY, O_DIRECTORY } = constants;

/**
 * Keeps two restores in place from one target, and from targets one of which is below the other:
 * the target is locked for this one alone, and each directory above it on the same file system in a
 * way that others may share, but nobody may have for himself.
 */
export class PlaceLock implements AsyncDisposable {
  readonly #above: fs.FileHandle[] = [];

  private constructor() {
    // See `take`.
  }

  /**
   * Locks what is open as `descriptor`, until that is closed, and what is above it, until this is
   * disposed of. `path`: absolute and without links in it. A device has nothing above it.
   * `onUnchecked` is called with what cannot be locked. Throws `TARGET_IN_USE`.
   */
  static async take(
    target: { readonly path: string; readonly descriptor: number; readonly isDevice: boolean },
    onUnchecked: (text: string) => void,
  ): Promise<PlaceLock> {
    const { path, descriptor, isDevice } = target;
    const lock = new PlaceLock();
    try {
      const isLocked = posix().tryLock(descriptor);
      if (isLocked === false) throw isTaken(printable(path));
      if (isLocked === undefined) {
        const text =
          'this file system has no locks: make sure that no other restore in place runs on the target';
        onUnchecked(text);
      } else if (!isDevice) await lock.#takeAbove(path, onUnchecked);
      return lock;
    } catch (error) {
      await lock[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #takeAbove(path: string, onUnchecked: (text: string) => void): Promise<void> {
    const { dev } = await fs.stat(path);
    for (let at = path; at !== '/';) {
      at = dirname(at);
      let handle: fs.FileHandle;
      try {
        handle = await fs.open(at, O_RDONLY | O_DIRECTORY);
      } catch {
        const text = `${printable(at)} above the target cannot be locked: make sure that no restore in place runs on it`;
        onUnchecked(text);
        continue;
      }
      this.#above.push(handle);
      // What is above the root of a file system is of another one, which nobody restores through
      // this one.
      if ((await handle.stat()).dev !== dev) return;
      if (posix().tryLock(handle.fd, 'shared') === false)
        throw isTaken(`${printable(at)}, above ${printable(path)},`);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#above.splice(0).map((handle) => handle.close()));
  }
}

function isTaken(what: string): CodedError {
  const text = `${what} is locked by another process, perhaps by another restore in place: wait until that has ended`;
  return new CodedError('TARGET_IN_USE', text);
}
