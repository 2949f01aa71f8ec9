import { constants } from 'node:fs';
import * as fs from 'node:fs/promises';
import { dirname } from 'node:path';
import { CodedError, posix, printable } from '../../base/index.ts';

const { O_RDONLY, O_DIRECTORY } = constants;

/**
 * Prevents two restores in place of the same target, or of nested targets. Takes an exclusive lock
 * on the target. Takes a shared lock on each directory above it on the same file system.
 */
export class PlaceLock implements AsyncDisposable {
  readonly #above: fs.FileHandle[] = [];

  private constructor() {
    // See `take`.
  }

  /**
   * Locks the open `descriptor` until it is closed, and the directories above until this is
   * disposed. `path` is absolute, without links. A device has no directories above. Calls
   * `onUnchecked` for each place that cannot be locked. Throws `TARGET_IN_USE`.
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
      // The parent is on another file system. No restore reaches this target through it.
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
