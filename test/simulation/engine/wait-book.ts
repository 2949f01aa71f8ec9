import { Semaphore } from '../../../src/base/index.ts';
import { BufferPool } from '../../../src/codec/index.ts';
import { type BufferTaker, PackBuffers } from '../../../src/repository/content/pack-buffers.ts';
import { replace } from './replace.ts';
import { currentProcess, type Process } from './process.ts';

interface Wait {
  readonly process: Process;
  readonly what: string;
}

/**
 * Records each wait for a semaphore, a signal or a buffer, with its stack. Used for the second run
 * of a stuck seed, so that the product has no cost.
 */
export class WaitBook implements Disposable {
  readonly #waits = new Set<Wait>();
  readonly #undo: (() => void)[] = [];

  constructor() {
    this.#watch(Semaphore.prototype, 'acquire', 'a semaphore');
    this.#watchTakers();
    this.#watch(BufferPool.prototype, 'acquire', 'a buffer');
  }

  #watch<T extends object>(target: T, method: keyof T, name: string): void {
    const original = target[method] as (...parameters: unknown[]) => Promise<unknown>;
    const waits = this.#waits;
    const noted = function (this: T, ...parameters: unknown[]): Promise<unknown> {
      const promise = original.apply(this, parameters);
      const process = currentProcess();
      if (!process) return promise;
      const wait = { process, what: `${name}: ${callers()}` };
      waits.add(wait);
      const done = (): void => void waits.delete(wait);
      promise.then(done, done);
      return promise;
    };
    this.#undo.push(replace(target, method, noted));
  }

  /** A waiter for a pack buffer is a callback, not a promise. */
  #watchTakers(): void {
    const { prototype } = PackBuffers;
    const waits = this.#waits;
    const notes = new WeakMap<BufferTaker, { wait: Wait; taker: BufferTaker }>();
    const original = {
      enqueue: Object.getOwnPropertyDescriptor(prototype, 'enqueue')?.value as (
        t: BufferTaker,
      ) => void,
      withdraw: Object.getOwnPropertyDescriptor(prototype, 'withdraw')?.value as (
        t: BufferTaker,
      ) => void,
    };
    const enqueue = function (this: PackBuffers, taker: BufferTaker): void {
      const process = currentProcess();
      if (!process) {
        original.enqueue.call(this, taker);
        return;
      }
      const wait = { process, what: `a pack buffer: ${callers()}` };
      const noted: BufferTaker = (buffer) => {
        waits.delete(wait);
        taker(buffer);
      };
      waits.add(wait);
      notes.set(taker, { wait, taker: noted });
      original.enqueue.call(this, noted);
    };
    const withdraw = function (this: PackBuffers, taker: BufferTaker): void {
      const note = notes.get(taker);
      if (note) waits.delete(note.wait);
      original.withdraw.call(this, note?.taker ?? taker);
    };
    this.#undo.push(replace(prototype, 'enqueue', enqueue));
    this.#undo.push(replace(prototype, 'withdraw', withdraw));
  }

  of(process: Process): string[] {
    const counts = new Map<string, number>();
    for (const wait of this.#waits) {
      if (wait.process === process) counts.set(wait.what, (counts.get(wait.what) ?? 0) + 1);
    }
    return [...counts].map(([what, count]) => (count > 1 ? `${what} (${count} times)` : what));
  }

  [Symbol.dispose](): void {
    for (const undo of this.#undo.splice(0)) undo();
  }
}

/** The engine's lines of the present stack, innermost first. */
function callers(): string {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 30;
  const lines = (new Error().stack ?? '').split('\n');
  Error.stackTraceLimit = stackTraceLimit;
  return lines
    .flatMap((line) =>
      /at (?:async )?(?:(\S+) )?.*\/src\/([^)]*?):\d+\)?$/.exec(line)?.slice(1) ? [line] : [],
    )
    .map((line) => {
      const [, name = '', place = ''] =
        /at (?:async )?(?:(\S+) \()?.*\/src\/(.*?):\d+\)?$/.exec(line) ?? [];
      return `${name.replace(/^.*\./, '')} ${place}`.trim();
    })
    .slice(0, 6)
    .join(' < ');
}
