import { realpath } from 'node:fs/promises';
import { CodedError, printable } from '../../base/index.ts';
import type { InPlaceOptions } from './in-place-report.ts';
import { PlaceLock } from './place-lock.ts';
import { findOpenFiles, type Sought, type Use } from './open-files.ts';

/** Checks, as far as possible, that no other process uses the target during the restore. */
export class Guard implements AsyncDisposable {
  readonly #target: string;
  readonly #options: InPlaceOptions;
  readonly #sought: Sought;
  readonly #lock: PlaceLock;

  private constructor(target: string, sought: Sought, lock: PlaceLock, options: InPlaceOptions) {
    this.#target = target;
    this.#sought = sought;
    this.#lock = lock;
    this.#options = options;
  }

  /**
   * Locks the open `descriptor` until it is closed and this is disposed. Looks for processes that
   * use it. Throws `TARGET_IN_USE`.
   */
  static async over(
    target: { readonly path: string; readonly descriptor: number; readonly deviceNumber?: number },
    options: InPlaceOptions,
  ): Promise<Guard> {
    const { path, descriptor, deviceNumber } = target;
    const real = await realpath(path);
    const isDevice = deviceNumber !== undefined;
    const sought = { path: real, ...(isDevice && { deviceNumber }) };
    const lock = await PlaceLock.take({ path: real, descriptor, isDevice }, (text) => {
      options.onUnchecked?.(text);
    });
    const guard = new Guard(path, sought, lock, options);
    try {
      await guard.#look('stop it first, or choose another target', true);
      return guard;
    } catch (error) {
      await lock[Symbol.asyncDispose]();
      throw error;
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#lock[Symbol.asyncDispose]();
  }

  /** Call it after the last write. Throws `TARGET_IN_USE`: others may have used a mixture. */
  async assertStillUnused(): Promise<void> {
    await this.#look('it was started during the restore: stop it and run the same command again');
  }

  async #look(advice: string, isFirst = false): Promise<void> {
    const { ignoreOpenFiles, signal, onUnchecked } = this.#options;
    if (ignoreOpenFiles === true) return;
    const found = await findOpenFiles(this.#sought, { signal });
    const [first] = found.uses;
    if (first) throw this.#inUse(first, found.uses.length - 1, advice);
    if (!isFirst) return;
    if (!found.seesWholeMachine) {
      onUnchecked?.('processes of other containers and of the host could not be seen');
    }
    if (found.unseenProcesses > 0) {
      onUnchecked?.(`the open files of ${unseen(found.unseenProcesses)} could not be seen`);
    }
  }

  #inUse({ who, path }: Use, others: number, advice: string): CodedError {
    const more = others > 0 ? ` (and ${others} more)` : '';
    const text = `${this.#target} is in use: ${printable(who)} has ${printable(path)} open${more}; ${advice}`;
    return new CodedError('TARGET_IN_USE', text);
  }
}

function unseen(processes: number): string {
  const text = processes === 1 ? 'one process' : `${processes} processes`;
  return process.geteuid?.() === 0 ? text : `${text}, which root can look into,`;
}
