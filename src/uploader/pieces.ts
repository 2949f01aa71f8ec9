import type { FileHandle } from 'node:fs/promises';
import { posix } from '../base/index.ts';
import { BufferPool, type Span } from '../codec/index.ts';
import type { DataPath } from '../repository/index.ts';
import { SLAB_BYTES } from '../repository/index.ts';

/** A stretch of a stream: bytes in a slab that goes back when released, or zeros that nobody reads. */
export type Piece =
  | { readonly kind: 'data'; readonly span: Span; readonly release: () => void }
  | { readonly kind: 'zeros'; readonly length: number };

/** Reads under way for one file. Our choice: more only holds memory, the disk is busy with these. */
const READ_AHEAD = 3;

/** The slabs that volume bytes are read into; a fixed number, shared by all files. */
export class Slabs {
  readonly #pool: BufferPool;
  readonly bytes: Uint8Array;
  readonly zerosAddress: number;
  /** Called when somebody has to wait for a slab: whoever sits on some should let go. */
  onShortage: () => void = () => undefined;

  constructor({ arena, slabAddresses, zerosAddress }: DataPath) {
    this.#pool = BufferPool.of(slabAddresses, SLAB_BYTES);
    this.bytes = arena.bytes;
    this.zerosAddress = zerosAddress;
  }

  async acquire(): Promise<number> {
    const free = this.#pool.tryAcquire();
    if (free !== undefined) return free;
    const waiting = this.#pool.acquire();
    this.onShortage();
    return waiting;
  }

  get isShort(): boolean {
    return this.#pool.hasWaiters;
  }

  release(address: number): void {
    this.#pool.release(address);
  }

  /** Whether bytes in a slab are all zero: one memcmp, which ends at the first difference. */
  isZero({ address, length }: Span): boolean {
    const zeros = this.bytes.subarray(this.zerosAddress, this.zerosAddress + length);
    return Buffer.compare(this.bytes.subarray(address, address + length), zeros) === 0;
  }
}

interface Extent {
  readonly kind: 'data' | 'hole';
  readonly start: number;
  readonly end: number;
}

/** Data and holes of a file in order, as far as the file system tells. */
function* extentsOf(descriptor: number, start: number, end: number): Generator<Extent> {
  let at = start;
  while (at < end) {
    const data = Math.min(posix().seekData(descriptor, at) ?? end, end);
    if (data > at) yield { kind: 'hole', start: at, end: data };
    if (data >= end) return;
    const hole = Math.min(posix().seekHole(descriptor, data) ?? end, end);
    yield { kind: 'data', start: data, end: hole };
    at = hole;
  }
}

export interface ReadRangeOptions {
  readonly start: number;
  /** Where the data is expected to end; reading stops there, or goes on to the real end. */
  readonly end: number;
  readonly toEndOfFile: boolean;
  /** Ask the file system for holes. */
  readonly sparse: boolean;
  readonly signal?: AbortSignal | undefined;
  readonly onRead: (bytes: number) => void;
}

/**
 * The bytes of a file in order, with reads ahead in slabs. A file that ends early ends the stream.
 * Leaving the loop releases what was read ahead.
 */
export async function* readPieces(
  file: FileHandle,
  slabs: Slabs,
  options: ReadRangeOptions,
): AsyncGenerator<Piece> {
  const ahead: Promise<{ span: Span; wanted: number } | number>[] = [];
  const plan = planReads(file.fd, options);
  const read = async (offset: number, wanted: number): Promise<{ span: Span; wanted: number }> => {
    const address = await slabs.acquire();
    try {
      options.signal?.throwIfAborted();
      const view = slabs.bytes.subarray(address, address + wanted);
      let length = 0;
      while (length < wanted) {
        const { bytesRead } = await file.read(view, length, wanted - length, offset + length);
        if (bytesRead === 0) break;
        length += bytesRead;
      }
      options.onRead(length);
      return { span: { address, length }, wanted };
    } catch (error) {
      slabs.release(address);
      throw error;
    }
  };
  const fill = (): void => {
    while (ahead.length < READ_AHEAD) {
      const step = plan.next();
      if (step.done === true) return;
      const next =
        step.value.kind === 'hole'
          ? Promise.resolve(step.value.end - step.value.start)
          : read(step.value.start, step.value.end - step.value.start);
      // A failure is met where it is awaited; until then it must not count as unhandled.
      next.catch(() => undefined);
      ahead.push(next);
    }
  };
  try {
    fill();
    while (ahead.length > 0) {
      const next = await (ahead.shift() as (typeof ahead)[0]);
      if (typeof next === 'number') {
        fill();
        yield { kind: 'zeros', length: next };
        continue;
      }
      const { span, wanted } = next;
      if (span.length === 0) {
        slabs.release(span.address);
        return;
      }
      if (span.length === wanted) fill();
      if (slabs.isZero(span)) {
        slabs.release(span.address);
        yield { kind: 'zeros', length: span.length };
      } else {
        const release = (): void => {
          slabs.release(span.address);
        };
        yield { kind: 'data', span, release };
      }
      if (span.length < wanted) return;
    }
  } finally {
    for (const pending of ahead) {
      void pending.then(
        (value) => {
          if (typeof value !== 'number') slabs.release(value.span.address);
        },
        () => undefined,
      );
    }
  }
}

/** Reads of at most one slab each; past the expected end, one after the other until nothing comes. */
function* planReads(descriptor: number, options: ReadRangeOptions): Generator<Extent> {
  const { start, end, sparse, toEndOfFile } = options;
  const extents: Iterable<Extent> = sparse
    ? extentsOf(descriptor, start, end)
    : [{ kind: 'data', start, end }];
  for (const extent of extents) {
    if (extent.kind === 'hole') {
      yield extent;
      continue;
    }
    for (let at = extent.start; at < extent.end; at += SLAB_BYTES) {
      yield { kind: 'data', start: at, end: Math.min(at + SLAB_BYTES, extent.end) };
    }
  }
  for (let at = end; toEndOfFile; at += SLAB_BYTES) {
    yield { kind: 'data', start: at, end: at + SLAB_BYTES };
  }
}
