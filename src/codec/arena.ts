import { assert } from '../base/index.ts';
import { ARENA_START, createKernelMemory } from './wasm/kernels.ts';

/** A run of bytes in the shared memory. */
export interface Span {
  readonly address: number;
  readonly length: number;
}

/** Bytes in front of each buffer for the end of what came before it; buzhash looks back 64. */
export const LOOK_BACK_BYTES = 64;
const ALIGNMENT = 4096;

/**
 * The shared memory of one process: fixed buffers, handed out by the main thread, reused until the
 * process ends. Buffers that stay warm are the first thing to get right: a page that is touched
 * anew costs more than hashing it. Holes of files are spans of `zeros`, which nobody writes.
 */
export class Arena {
  readonly memory: WebAssembly.Memory;
  readonly bytes: Uint8Array;
  #next = ARENA_START;

  constructor(lengthBytes: number) {
    this.memory = createKernelMemory(lengthBytes);
    this.bytes = new Uint8Array(this.memory.buffer);
  }

  /** Address of a new buffer that stays for good, with {@link LOOK_BACK_BYTES} in front of it. */
  allocate(lengthBytes: number): number {
    const address = this.#next + ALIGNMENT;
    const end = address + Math.ceil(lengthBytes / ALIGNMENT) * ALIGNMENT;
    assert(end <= this.bytes.length, 'the arena is exhausted');
    this.#next = end;
    return address;
  }

  view({ address, length }: Span): Uint8Array {
    return this.bytes.subarray(address, address + length);
  }
}

/** A fixed number of equal buffers; callers that ask for more wait. */
export class BufferPool {
  readonly bufferBytes: number;
  readonly #free: number[];
  readonly #waiting: ((address: number) => void)[] = [];

  private constructor(addresses: readonly number[], bufferBytes: number) {
    this.bufferBytes = bufferBytes;
    this.#free = [...addresses];
  }

  /** Hands out buffers that exist already; the caller hands in each once. */
  static of(addresses: readonly number[], bufferBytes: number): BufferPool {
    return new BufferPool(addresses, bufferBytes);
  }

  static allocate(arena: Arena, count: number, bufferBytes: number): BufferPool {
    const addresses = Array.from({ length: count }, () => arena.allocate(bufferBytes));
    return new BufferPool(addresses, bufferBytes);
  }

  get hasWaiters(): boolean {
    return this.#waiting.length > 0;
  }

  acquire(): Promise<number> {
    const address = this.#free.pop();
    if (address !== undefined) return Promise.resolve(address);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  tryAcquire(): number | undefined {
    return this.#free.pop();
  }

  release(address: number): void {
    const next = this.#waiting.shift();
    if (next) next(address);
    else this.#free.push(address);
  }
}
