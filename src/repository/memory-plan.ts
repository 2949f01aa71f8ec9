import { CodedError, formatBytes } from '../base/index.ts';
import { THREADS_MAX } from '../codec/index.ts';

/** The data path's part of a memory budget. The rest is the process itself. */
export interface MemoryPlan {
  /** Worker threads: at most one for each CPU, fewer if memory is short. */
  readonly threads: number;
  /** Buffers for bytes read from volumes. */
  readonly slabCount: number;
  /** Packs of file data that are filled in parallel. */
  readonly dataLanes: number;
  /** Packs that can be put while others are filled. */
  readonly packsInFlight: number;
  /** Merged indexes above this size go to scratch files. */
  readonly indexMemoryBytes: number;
  /** Whether one more thread, which only scans files, might exceed the budget. */
  readonly isTight?: boolean;
}

const MIB = 2 ** 20;
export const DEFAULT_MEMORY_BYTES = 256 * MIB;
export const MEMORY_BYTES_MIN = 160 * MIB;
/** Node with its code and main heap, and each worker thread. Measured, see docs/performance.md. */
const PROCESS_BYTES = 106 * MIB;
const THREAD_BYTES = 14 * MIB;
const SLAB_MIB = 4;
/** Maximum length of a pack of the default size (write-session.ts). */
const PACK_MIB = 24;
/** Slabs for one stream with chunks of up to 16 MiB, plus one for small files. */
const SLABS_MIN = 7;

/** Library and connections of a cloud storage. Measured with S3, the largest. */
const REMOTE_BYTES = 32 * MIB;

/**
 * Below this budget, one more thread is too much. Measured with the built program, with a thread
 * that counts a directory during an upload: 203 of 208 MiB, and 190 of 256 MiB. Without that
 * thread: 187 of 208 MiB. A remote storage needs more.
 */
const TIGHT_BYTES = 224 * MIB;

/** Minimum index memory. Indexes also get a tenth of the spare memory. */
const INDEX_MIB_MIN = 8;
/**
 * Packs of file data for this many threads. Our choice: sealing is the smaller part of their work,
 * and puts hold packs too.
 */
const dataPacksOf = (threads: number): number => Math.max(1, Math.ceil(threads / 2) - 1);

/**
 * Divides a budget. First come threads, each with its slabs and lanes. The rest becomes more packs
 * and slabs. If the budget is too small for one thread, returns the minimum that works
 * ({@link planBytes} tells its size). Throws `MEMORY_LIMIT_TOO_LOW`.
 */
export function planMemory(limitBytes: number, cpus: number, isRemote = false): MemoryPlan {
  if (limitBytes < MEMORY_BYTES_MIN) {
    const least = formatBytes(MEMORY_BYTES_MIN);
    const text = `a memory limit of ${formatBytes(limitBytes)} is too low; at least ${least} are needed`;
    throw new CodedError('MEMORY_LIMIT_TOO_LOW', text);
  }
  const available = (limitBytes - processBytes(isRemote)) / MIB;
  let threads = clamp(cpus, 1, THREADS_MAX);
  while (threads > 1 && leastMib(threads) > available) threads--;
  const free = available - threads * (THREAD_BYTES / MIB);
  const rest = available - leastMib(threads);
  const indexMib = clamp(INDEX_MIB_MIN + rest / 10, INDEX_MIB_MIN, 512);
  const leastSlabs = slabsOf(threads);
  const forPacks = free - indexMib - leastSlabs * SLAB_MIB;
  // Keep one pack for metadata. Data packs use it too while it is free.
  const dataPacks = Math.max(1, Math.floor(forPacks / PACK_MIB) - 1);
  const dataLanes = clamp(dataPacks, 1, threads);
  const packsInFlight = clamp(dataPacks - dataLanes, 0, 8);
  const left = forPacks - (dataLanes + packsInFlight + 1) * PACK_MIB;
  const slabsMax = 8 + 4 * threads;
  const slabCount = clamp(leastSlabs + Math.floor(left / SLAB_MIB), leastSlabs, slabsMax);
  const indexMemoryBytes = Math.floor(indexMib) * MIB;
  const isTight = limitBytes < TIGHT_BYTES + (isRemote ? REMOTE_BYTES : 0);
  return { threads, slabCount, dataLanes, packsInFlight, indexMemoryBytes, isTight };
}

/** Memory of a plan in full use, including the process. */
export function planBytes(plan: MemoryPlan, isRemote = false): number {
  const { threads, slabCount, dataLanes, packsInFlight, indexMemoryBytes } = plan;
  const packs = dataLanes + packsInFlight + 1;
  const buffers = (slabCount * SLAB_MIB + packs * PACK_MIB) * MIB;
  return processBytes(isRemote) + threads * THREAD_BYTES + indexMemoryBytes + buffers;
}

const processBytes = (isRemote: boolean): number => PROCESS_BYTES + (isRemote ? REMOTE_BYTES : 0);

/** A slab for each thread, plus some being read, so that threads do not wait for the disk. */
const slabsOf = (threads: number): number => Math.max(SLABS_MIN, threads + 3);

/** Minimum memory for this many threads and their buffers. */
function leastMib(threads: number): number {
  const packs = 1 + dataPacksOf(threads);
  const slabs = slabsOf(threads);
  return threads * (THREAD_BYTES / MIB) + slabs * SLAB_MIB + packs * PACK_MIB + INDEX_MIB_MIN;
}

const clamp = (value: number, low: number, high: number): number =>
  Math.min(high, Math.max(low, value));
