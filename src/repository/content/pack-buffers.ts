import { Signal } from '../../base/index.ts';
import { type Arena, BufferPool } from '../../codec/index.ts';

/** Memory for packs: a fixed number of buffers, so that packs being filled and put have a bound. */
export interface PackBuffers {
  readonly bufferBytes: number;
  tryAcquire(): Uint8Array | undefined;
  acquire(): Promise<Uint8Array>;
  release(buffer: Uint8Array): void;
  /** Resolves with the next release. Several may wait; each tries again and may find others were first. */
  nextRelease(): Promise<void>;
}

/** Room for a full pack, or for one at 60 % (below which maintenance rewrites it) and the longest content. */
export function packBufferBytes(maxPackBytes: number, contentBytesMax: number): number {
  const slack = 256 << 10;
  return slack + Math.max(maxPackBytes, Math.ceil(maxPackBytes * 0.6) + contentBytesMax);
}

/** Buffers that the threads can write to. */
export function arenaPackBuffers(arena: Arena, count: number, bufferBytes: number): PackBuffers {
  const pool = BufferPool.allocate(arena, count, bufferBytes);
  const view = (address: number): Uint8Array => arena.view({ address, length: bufferBytes });
  const releases = new Signal();
  return {
    bufferBytes,
    tryAcquire: () => {
      const address = pool.tryAcquire();
      return address === undefined ? undefined : view(address);
    },
    acquire: async () => view(await pool.acquire()),
    release: (buffer) => {
      pool.release(buffer.byteOffset);
      releases.fire();
    },
    nextRelease: () => releases.next(),
  };
}

/** Buffers on the heap, for commands that write a little metadata. Pages cost nothing until touched. */
export function heapPackBuffers(bufferBytes: number): PackBuffers {
  const free: Uint8Array[] = [];
  const take = (): Uint8Array => free.pop() ?? Buffer.allocUnsafeSlow(bufferBytes);
  return {
    bufferBytes,
    tryAcquire: take,
    acquire: () => Promise.resolve(take()),
    release: (buffer) => {
      if (free.length < 2) free.push(buffer);
    },
    nextRelease: () => Promise.resolve(),
  };
}
