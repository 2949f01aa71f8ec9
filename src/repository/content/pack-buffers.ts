import { type Arena, BufferPool } from '../../codec/index.ts';

/** Memory for packs: a fixed number of buffers, so that packs being filled and put have a bound. */
export interface PackBuffers {
  readonly bufferBytes: number;
  acquire(): Promise<Uint8Array>;
  release(buffer: Uint8Array): void;
}

/** Room for a full pack, or for one at 60 % (below which maintenance rewrites it) and the longest content. */
export function packBufferBytes(maxPackBytes: number, contentBytesMax: number): number {
  const slack = 256 << 10;
  return slack + Math.max(maxPackBytes, Math.ceil(maxPackBytes * 0.6) + contentBytesMax);
}

/** Buffers that the threads can write to. */
export function arenaPackBuffers(arena: Arena, count: number, bufferBytes: number): PackBuffers {
  const pool = BufferPool.allocate(arena, count, bufferBytes);
  return {
    bufferBytes,
    acquire: async () => arena.view({ address: await pool.acquire(), length: bufferBytes }),
    release: (buffer) => {
      pool.release(buffer.byteOffset);
    },
  };
}

/** Buffers on the heap, for commands that write a little metadata. Pages cost nothing until touched. */
export function heapPackBuffers(bufferBytes: number): PackBuffers {
  const free: Uint8Array[] = [];
  return {
    bufferBytes,
    acquire: () => Promise.resolve(free.pop() ?? Buffer.allocUnsafeSlow(bufferBytes)),
    release: (buffer) => {
      if (free.length < 2) free.push(buffer);
    },
  };
}
