import { assert } from '../base/index.ts';
import { ARENA_START, createKernelMemory } from './wasm/kernels.ts';

/** A run of bytes in the shared memory. */
export interface Span {
  readonly address: number;
  readonly length: number;
}

/** Bytes in front of each buffer, for the end of the bytes before it. Buzhash looks back 64. */
export const LOOK_BACK_BYTES = 64;
const ALIGNMENT = 4096;

/**
 * The shared memory of one process. The main thread hands out fixed buffers and reuses them until
 * the process ends. Buffers must stay warm: touching a new page costs more than hashing it. Holes
 * of files are spans of `zeros`, which stays zero.
 */
export class Arena {
  readonly memory: WebAssembly.Memory;
  readonly bytes: Uint8Array;
  #next = ARENA_START;

  constructor(lengthBytes: number) {
    this.memory = createKernelMemory(lengthBytes);
    this.bytes = new Uint8Array(this.memory.buffer);
  }

  /** Allocates a buffer for good. {@link LOOK_BACK_BYTES} in front of its address are free too. */
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

/** A fixed number of equal buffers. Callers wait when none is free. */
export class BufferPool {
  readonly bufferBytes: number;
  readonly #free: number[];
  readonly #waiting: ((address: number) => void)[] = [];

  private constructor(addresses: readonly number[], bufferBytes: number) {
    this.bufferBytes = bufferBytes;
    this.#free = [...addresses];
  }

  /** Hands out existing buffers. */
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
