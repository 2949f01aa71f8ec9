import { CodedError, formatBytes } from '../base/index.ts';
import { THREADS_MAX } from '../codec/index.ts';

/**
 * What a process takes of a memory budget for its data path; the rest of the budget is the process
 * itself.
 */
export interface MemoryPlan {
  /** Worker threads: at most one for each CPU, fewer where the budget does not carry them. */
  readonly threads: number;
  /** Slabs that volume bytes are read into. */
  readonly slabCount: number;
  /** Packs of file data that are filled at once. */
  readonly dataLanes: number;
  /** Packs that may be put while others are filled. */
  readonly packsInFlight: number;
  /** Above it, merged indexes go to scratch files. */
  readonly indexMemoryBytes: number;
  /**
   * Whether a further thread, which does nothing but look at files, might be more than the budget
   * carries.
   */
  readonly isTight?: boolean;
}

const MIB = 2 ** 20;
export const DEFAULT_MEMORY_BYTES = 256 * MIB;
export const MEMORY_BYTES_MIN = 160 * MIB;
/**
 * Node, its code, the heap of the main thread; and each worker thread. Measured, see
 * docs/performance.md.
 */
const PROCESS_BYTES = 106 * MIB;
const THREAD_BYTES = 14 * MIB;
const SLAB_MIB = 4;
/** A pack of the default size, as long as it may get (write-session.ts). */
const PACK_MIB = 24;
/**
 * What one stream of chunks of up to 16 MiB needs to get on, and a slab for small files beside it.
 */
const SLABS_MIN = 7;

/** The library of a cloud storage and its connections. Measured with S3, the largest. */
const REMOTE_BYTES = 32 * MIB;

/**
 * Below it a thread more is too much: the built program took 203 MiB of 208 with one that counts a
 * directory beside its upload, 187 without, and 190 of 256. What a remote storage takes comes on
 * top.
 */
const TIGHT_BYTES = 224 * MIB;

/** The least for indexes in memory; beyond it they take a tenth of what the process leaves. */
const INDEX_MIB_MIN = 8;
/**
 * Packs of data for so many threads. Our choice: sealing is the smaller part of their work, and
 * puts hold packs too.
 */
const dataPacksOf = (threads: number): number => Math.max(1, Math.ceil(threads / 2) - 1);

/**
 * Shares a budget out. Threads come first, each with its part of the slabs and lanes that it needs
 * to be of use; the rest becomes further packs and slabs. A budget that does not even carry one
 * thread gets the least that works ({@link planBytes} tells how much). Throws
 * `MEMORY_LIMIT_TOO_LOW`.
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
  // One is for metadata; packs of data use it too, while nobody else does.
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

/** What a plan takes when all of it is in use, the process itself included. */
export function planBytes(plan: MemoryPlan, isRemote = false): number {
  const { threads, slabCount, dataLanes, packsInFlight, indexMemoryBytes } = plan;
  const packs = dataLanes + packsInFlight + 1;
  const buffers = (slabCount * SLAB_MIB + packs * PACK_MIB) * MIB;
  return processBytes(isRemote) + threads * THREAD_BYTES + indexMemoryBytes + buffers;
}

const processBytes = (isRemote: boolean): number => PROCESS_BYTES + (isRemote ? REMOTE_BYTES : 0);

/** A slab for each thread and some being read, so that threads do not wait for the disk. */
const slabsOf = (threads: number): number => Math.max(SLABS_MIN, threads + 3);

/** What so many threads take at least, with all that they need. */
function leastMib(threads: number): number {
  const packs = 1 + dataPacksOf(threads);
  const slabs = slabsOf(threads);
  return threads * (THREAD_BYTES / MIB) + slabs * SLAB_MIB + packs * PACK_MIB + INDEX_MIB_MIN;
}

const clamp = (value: number, low: number, high: number): number =>
  Math.min(high, Math.max(low, value));
