import { createHash } from 'node:crypto';
import { syncBuiltinESMExports } from 'node:module';
import { Random, type VirtualTime } from '../virtual-time.ts';
import { currentProcess, fillRandomly } from './process.ts';
import { replace, type Undo } from './replace.ts';
import type { Volumes } from './volume.ts';
import { patchFiles } from './volume-files.ts';

type Descriptor = ConstructorParameters<typeof WebAssembly.Memory>[0];

/** Memories of ended processes, by size. Mapping new ones would take most of the time. */
const memories = new Map<number, WebAssembly.Memory[]>();
/** The same for buffers on the heap. */
const buffers = new Map<number, Buffer[]>();
const LARGE_BYTES = 4 << 20;

/**
 * Replaces parts of Node while a seed runs. Timers are virtual and belong to processes. Randomness
 * comes from the seed, and files below /volume are in memory. Keys are derived from passwords by
 * one cheap hash, only here.
 */
export class Machine implements Disposable {
  readonly #undo: Undo[] = [];
  readonly #lent: WebAssembly.Memory[] = [];
  readonly #lentBuffers: Buffer[] = [];
  readonly #time: VirtualTime;
  readonly #random: Random;

  constructor(time: VirtualTime, seed: number) {
    this.#time = time;
    this.#random = new Random(seed ^ 0x2545f491);
  }

  install(volumes: Volumes): void {
    this.#time.install();
    this.#undo.push(...this.#patchTimers(), ...this.#patchRandomness(), ...patchFiles(volumes));
    this.#undo.push(replace(WebAssembly, 'Memory', this.#memories()), this.#patchBuffers());
    syncBuiltinESMExports();
  }

  #patchTimers(): Undo[] {
    const time = this.#time;
    const handle = (clear: () => void): object => {
      const timer = { clear, unref: () => timer, ref: () => timer };
      return timer;
    };
    const clear = (timer: unknown): void => {
      (timer as { clear?: () => void } | undefined)?.clear?.();
    };
    const setTimeout = (run: () => void, ms = 0): object => {
      const process = currentProcess();
      if (process) return handle(process.await('timer', ms, run));
      const id = time.after(ms, run);
      return handle(() => {
        time.clear(id);
      });
    };
    const setInterval = (run: () => void, ms = 0): object => {
      const process = currentProcess();
      if (!process) throw new Error('the world around has no use for intervals');
      return handle(process.every(ms, run));
    };
    const sleep = (
      ms = 0,
      value?: unknown,
      { signal }: { signal?: AbortSignal } = {},
    ): Promise<unknown> =>
      new Promise((resolve, reject) => {
        const fail = (): void => {
          clear(timer);
          const error = new Error('The operation was aborted', { cause: signal?.reason });
          error.name = 'AbortError';
          reject(error);
        };
        const timer = setTimeout(() => {
          signal?.removeEventListener('abort', fail);
          resolve(value);
        }, ms);
        if (signal?.aborted === true) fail();
        else signal?.addEventListener('abort', fail, { once: true });
      });
    return [
      replace(globalThis, 'setTimeout', setTimeout),
      replace(globalThis, 'setInterval', setInterval),
      replace(globalThis, 'clearTimeout', clear),
      replace(globalThis, 'clearInterval', clear),
      replace(process.getBuiltinModule('node:timers/promises'), 'setTimeout', sleep),
    ];
  }

  #patchRandomness(): Undo[] {
    const cryptography = process.getBuiltinModule('node:crypto');
    const fill = (bytes: Uint8Array): Uint8Array => fillRandomly(bytes, this.#random);
    const derive = (
      password: Uint8Array,
      salt: Uint8Array,
      bytes: number,
      _options: unknown,
      done: (error: null, key: Buffer) => void,
    ): void => {
      const key = createHash('sha512').update(password).update(salt).digest().subarray(0, bytes);
      done(null, key);
    };
    return [
      replace(cryptography, 'randomBytes', (length: number) => fill(Buffer.alloc(length))),
      replace(cryptography, 'randomFillSync', fill),
      replace(cryptography, 'scrypt', derive),
    ];
  }

  #memories(): (descriptor: Descriptor) => WebAssembly.Memory {
    const lent = this.#lent;
    const { Memory } = WebAssembly;
    // Called with `new`, which returns the object that the function returns.
    return function memoryOf(descriptor: Descriptor): WebAssembly.Memory {
      const memory = memories.get(descriptor.initial)?.pop() ?? new Memory(descriptor);
      lent.push(memory);
      return memory;
    };
  }

  #patchBuffers(): Undo {
    const allocate = Buffer.allocUnsafeSlow.bind(Buffer);
    return replace(Buffer, 'allocUnsafeSlow', (length: number) => {
      if (length < LARGE_BYTES) return allocate(length);
      const buffer = buffers.get(length)?.pop() ?? allocate(length);
      this.#lentBuffers.push(buffer);
      return buffer;
    });
  }

  [Symbol.dispose](): void {
    for (const undo of this.#undo.splice(0).reverse()) undo();
    for (const memory of this.#lent.splice(0)) {
      const pages = memory.buffer.byteLength / 65_536;
      const idle = memories.get(pages) ?? [];
      memories.set(pages, [...idle, memory]);
    }
    for (const buffer of this.#lentBuffers.splice(0)) {
      const idle = buffers.get(buffer.length) ?? [];
      buffers.set(buffer.length, [...idle, buffer]);
    }
    this.#time[Symbol.dispose]();
  }
}
