import { CodedError, formatBytes } from '../base/index.ts';

/** What a process takes of a memory budget for its data path; the rest of the budget is the process itself. */
export interface MemoryPlan {
  /** Slabs that volume bytes are read into. */
  readonly slabCount: number;
  /** Packs of file data that are filled at once. */
  readonly dataLanes: number;
  /** Packs that may be put while others are filled. */
  readonly packsInFlight: number;
  /** Above it, merged indexes go to scratch files. */
  readonly indexMemoryBytes: number;
}

const MIB = 2 ** 20;
export const DEFAULT_MEMORY_BYTES = 256 * MIB;
export const MEMORY_BYTES_MIN = 160 * MIB;
/** Node, its code, the heap of the main thread; and each worker thread. Measured, see docs/performance.md. */
const PROCESS_BYTES = 106 * MIB;
const THREAD_BYTES = 14 * MIB;
const SLAB_MIB = 4;
/** A pack of the default size, as long as it may get (write-session.ts). */
const PACK_MIB = 24;
/** What one stream of chunks of up to 16 MiB needs to get on, and a slab for small files beside it. */
const SLABS_MIN = 7;

/** The library of a cloud storage and its connections. Measured with S3, the largest. */
const REMOTE_BYTES = 32 * MIB;

/** Shares a budget out. Throws `MEMORY_LIMIT_TOO_LOW`. */
export function planMemory(limitBytes: number, threads: number, isRemote = false): MemoryPlan {
  if (limitBytes < MEMORY_BYTES_MIN) {
    const least = formatBytes(MEMORY_BYTES_MIN);
    const text = `a memory limit of ${formatBytes(limitBytes)} is too low; at least ${least} are needed`;
    throw new CodedError('MEMORY_LIMIT_TOO_LOW', text);
  }
  const free =
    (limitBytes - PROCESS_BYTES - (isRemote ? REMOTE_BYTES : 0) - threads * THREAD_BYTES) / MIB;
  const indexMib = clamp(free / 10, 8, 512);
  const forPacks = free - indexMib - SLABS_MIN * SLAB_MIB;
  // One is for metadata; packs of data use it too, while nobody else does.
  const dataPacks = Math.max(1, Math.floor(forPacks / PACK_MIB) - 1);
  const dataLanes = clamp(dataPacks, 1, threads);
  const packsInFlight = clamp(dataPacks - dataLanes, 0, 8);
  const left = forPacks - (dataLanes + packsInFlight + 1) * PACK_MIB;
  const slabsMax = 8 + 4 * threads;
  const slabCount = clamp(SLABS_MIN + Math.floor(left / SLAB_MIB), SLABS_MIN, slabsMax);
  return { slabCount, dataLanes, packsInFlight, indexMemoryBytes: Math.floor(indexMib) * MIB };
}

const clamp = (value: number, low: number, high: number): number =>
  Math.min(high, Math.max(low, value));
