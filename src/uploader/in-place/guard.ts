import { realpath } from 'node:fs/promises';
import { CodedError, posix, printable } from '../../base/index.ts';
import type { InPlaceOptions } from './in-place-report.ts';
import { findOpenFiles, type Sought, type Use } from './open-files.ts';

/** Makes sure, as far as can be seen, that nobody else uses the target while it is restored. */
export class Guard {
  readonly #target: string;
  readonly #options: InPlaceOptions;
  readonly #sought: Sought;

  private constructor(target: string, sought: Sought, options: InPlaceOptions) {
    this.#target = target;
    this.#sought = sought;
    this.#options = options;
  }

  /**
   * Locks what is open as `descriptor`, until that is closed, and looks for processes that use it. Throws `TARGET_IN_USE`.
   */
  static async over(
    target: { readonly path: string; readonly descriptor: number; readonly deviceNumber?: number },
    options: InPlaceOptions,
  ): Promise<Guard> {
    const { path, descriptor, deviceNumber } = target;
    const sought = {
      path: await realpath(path),
      ...(deviceNumber !== undefined && { deviceNumber }),
    };
    const guard = new Guard(path, sought, options);
    guard.#lock(descriptor);
    await guard.#look('stop it first, or choose another target', true);
    return guard;
  }

  /** After the last write. Throws `TARGET_IN_USE`: what another process wrote or read meanwhile may be a mixture. */
  async assertStillUnused(): Promise<void> {
    await this.#look('it was started during the restore: stop it and run the same command again');
  }

  #lock(descriptor: number): void {
    const isLocked = posix().tryLock(descriptor);
    if (isLocked === undefined) {
      this.#options.onUnchecked?.(
        'this file system has no locks: make sure that no other restore in place runs on the target',
      );
    }
    if (isLocked !== false) return;
    const text = `${this.#target} is locked by another process, perhaps by another restore in place: wait until that has ended`;
    throw new CodedError('TARGET_IN_USE', text);
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
