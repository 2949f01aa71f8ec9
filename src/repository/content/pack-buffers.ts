import { assert } from '../../base/index.ts';
import type { Arena } from '../../codec/index.ts';

/** Room for a full pack, or a 60 % full pack (maintenance's limit) plus the longest content. */
export function packBufferBytes(maxPackBytes: number, contentBytesMax: number): number {
  const slack = 256 << 10;
  return slack + Math.max(maxPackBytes, Math.ceil(maxPackBytes * 0.6) + contentBytesMax);
}

/** Called with a buffer on the caller's turn. */
export type BufferTaker = (buffer: Uint8Array) => void;

/** A fixed number of buffers, which limits the memory of packs. Callers wait in line. */
export class PackBuffers {
  readonly bufferBytes: number;
  /** Called when a caller starts to wait. Release buffers that you do not need. */
  onShortage: () => void = () => undefined;
  readonly #free: Uint8Array[] = [];
  readonly #make: () => Uint8Array;
  #unmade: number;
  readonly #waiting = new Set<BufferTaker>();

  /** Creates buffers on first use. */
  constructor(count: number, bufferBytes: number, make: () => Uint8Array) {
    this.bufferBytes = bufferBytes;
    this.#unmade = count;
    this.#make = make;
  }

  /** Number of callers that wait for a buffer. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Number of free buffers. */
  get free(): number {
    return this.#free.length + this.#unmade;
  }

  tryAcquire(): Uint8Array | undefined {
    if (this.#waiting.size > 0) return undefined;
    const free = this.#free.pop();
    if (free || this.#unmade === 0) return free;
    this.#unmade--;
    return this.#make();
  }

  acquire(): Promise<Uint8Array> {
    const buffer = this.tryAcquire();
    if (buffer) return Promise.resolve(buffer);
    return new Promise((resolve) => {
      this.enqueue(resolve);
    });
  }

  /** Joins the line. Calls each taker once, unless it is withdrawn first. */
  enqueue(taker: BufferTaker): void {
    this.#waiting.add(taker);
    this.onShortage();
  }

  withdraw(taker: BufferTaker): void {
    this.#waiting.delete(taker);
  }

  release(buffer: Uint8Array): void {
    assert(!this.#free.includes(buffer), 'a pack buffer was given back twice');
    const [first] = this.#waiting;
    if (!first) {
      this.#free.push(buffer);
      return;
    }
    this.#waiting.delete(first);
    first(buffer);
  }
}

/** Buffers that worker threads can write to. */
export function arenaPackBuffers(arena: Arena, count: number, bufferBytes: number): PackBuffers {
  const addresses = Array.from({ length: count }, () => arena.allocate(bufferBytes));
  return new PackBuffers(count, bufferBytes, () =>
    arena.view({ address: addresses.pop() as number, length: bufferBytes }),
  );
}

/** Heap buffers, for commands that write a little metadata. Untouched pages use no memory. */
export function heapPackBuffers(count: number, bufferBytes: number): PackBuffers {
  return new PackBuffers(count, bufferBytes, () => Buffer.allocUnsafeSlow(bufferBytes));
}
