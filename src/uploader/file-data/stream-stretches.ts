import type { FileHandle } from 'node:fs/promises';
import { posix } from '../../base/index.ts';
import { LOOK_BACK_BYTES, type Span } from '../../codec/index.ts';
import { SLAB_BYTES } from '../../repository/index.ts';
import type { Slabs } from './slabs.ts';

/**
 * A stretch of a stream: bytes in a slab that must be released, or unread zeros. The {@link
 * LOOK_BACK_BYTES} before zeros are zeros too, or the start of the stream. So finding cuts needs no
 * further slabs.
 */
export type Stretch =
  | { readonly kind: 'data'; readonly span: Span; readonly release: () => void }
  | { readonly kind: 'zeros'; readonly length: number };

/** Parallel reads of one file. Our choice: the disk is busy, and more would take memory. */
const READ_AHEAD = 3;

interface Extent {
  readonly kind: 'data' | 'hole';
  readonly start: number;
  readonly end: number;
  /** Bytes at the end of the data that lie in a hole and are not read. */
  readonly zeroBytes?: number;
}

/**
 * Holes, and reads of at most one slab, in order, from the file system's map. Holes within the
 * length of a slab are read as data. So reads start at least a slab apart, and a chunk with many
 * short extents needs no more slabs. A read before a hole includes its first bytes, as {@link
 * Stretch} promises.
 */
function* extentsOf(descriptor: number, start: number, end: number): Generator<Extent> {
  const dataFrom = (at: number): number => Math.min(posix().seekData(descriptor, at) ?? end, end);
  let at = start;
  let followsData = false;
  while (at < end) {
    const first = followsData ? at : dataFrom(at);
    if (first > at) yield { kind: 'hole', start: at, end: first };
    if (first >= end) return;
    const limit = Math.min(first + SLAB_BYTES, end);
    let zeroBytes = 0;
    for (at = first; at < limit;) {
      const hole = Math.min(posix().seekHole(descriptor, at) ?? end, limit);
      const next = hole < limit ? dataFrom(hole) : hole;
      if (next >= limit) {
        zeroBytes = Math.min(LOOK_BACK_BYTES, limit - hole);
        at = hole + zeroBytes;
        break;
      }
      // Advance in any case: a file system may report the same place as data and hole.
      at = Math.max(next, at + 512);
    }
    yield { kind: 'data', start: first, end: at, zeroBytes };
    followsData = zeroBytes < LOOK_BACK_BYTES;
  }
}

export interface ReadRangeOptions {
  readonly start: number;
  /** Expected end of the data. Reading stops there, or continues to the real end. */
  readonly end: number;
  readonly toEndOfFile: boolean;
  /** Whether to ask the file system for holes. */
  readonly sparse: boolean;
  readonly signal?: AbortSignal | undefined;
  readonly onRead: (bytes: number) => void;
  /** Called for bytes that are not read. */
  readonly onHole?: (bytes: number) => void;
}

/**
 * The bytes of a file in order, read ahead in slabs. A file that ends early ends the stream.
 * Leaving the loop releases all slabs.
 */
export async function* readStretches(
  file: FileHandle,
  slabs: Slabs,
  options: ReadRangeOptions,
): AsyncGenerator<Stretch> {
  const ahead: Promise<{ span: Span; wanted: number } | number>[] = [];
  const plan = planReads(file.fd, options);
  const read = async (extent: Extent): Promise<{ span: Span; wanted: number }> => {
    const { start: offset, zeroBytes = 0 } = extent;
    const wanted = extent.end - offset;
    const toRead = wanted - zeroBytes;
    const address = await slabs.acquire();
    try {
      options.signal?.throwIfAborted();
      const view = slabs.bytes.subarray(address, address + wanted);
      let length = 0;
      while (length < toRead) {
        const { bytesRead } = await file.read(view, length, toRead - length, offset + length);
        if (bytesRead === 0) break;
        length += bytesRead;
      }
      if (length === toRead) length += view.subarray(toRead).fill(0).length;
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
          : read(step.value);
      // The failure is thrown later, when it is awaited. Until then it must not count as unhandled.
      next.catch(() => undefined);
      ahead.push(next);
    }
  };
  let followsZeros = true;
  try {
    fill();
    while (ahead.length > 0) {
      const next = await (ahead.shift() as (typeof ahead)[0]);
      if (typeof next === 'number') {
        fill();
        followsZeros = true;
        options.onHole?.(next);
        yield { kind: 'zeros', length: next };
        continue;
      }
      const { span, wanted } = next;
      if (span.length === 0) {
        slabs.release(span.address);
        return;
      }
      if (span.length === wanted) fill();
      const isZero = slabs.isZero(span);
      const zeros: number = isZero ? span.length - (followsZeros ? 0 : LOOK_BACK_BYTES) : 0;
      if (zeros === span.length) slabs.release(span.address);
      else {
        const release = (): void => {
          slabs.release(span.address);
        };
        const { address, length } = span;
        const data = zeros > 0 ? { address, length: length - zeros } : span;
        yield { kind: 'data', span: data, release };
      }
      followsZeros = isZero && (followsZeros || span.length >= LOOK_BACK_BYTES);
      if (zeros > 0) yield { kind: 'zeros', length: zeros };
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

/** The bytes of a pipe, in full slabs except for the last. */
export async function* inputStretches(
  input: AsyncIterable<Uint8Array>,
  slabs: Slabs,
  { signal, onRead }: Pick<ReadRangeOptions, 'signal' | 'onRead'>,
): AsyncGenerator<Stretch> {
  let address: number | undefined;
  let length = 0;
  const take = (): Stretch => {
    const span = { address: address as number, length };
    address = undefined;
    length = 0;
    const release = (): void => {
      slabs.release(span.address);
    };
    return { kind: 'data', span, release };
  };
  try {
    for await (const chunk of input) {
      signal?.throwIfAborted();
      onRead(chunk.length);
      for (let at = 0; at < chunk.length;) {
        address ??= await slabs.acquire();
        const part = chunk.subarray(at, at + SLAB_BYTES - length);
        slabs.bytes.set(part, address + length);
        length += part.length;
        at += part.length;
        if (length === SLAB_BYTES) yield take();
      }
    }
    if (length > 0) yield take();
  } finally {
    if (address !== undefined) slabs.release(address);
  }
}

/** Reads of at most one slab. Past the expected end, they continue until a read is empty. */
function* planReads(descriptor: number, options: ReadRangeOptions): Generator<Extent> {
  const { start, end, sparse, toEndOfFile } = options;
  const extents: Iterable<Extent> = sparse
    ? extentsOf(descriptor, start, end)
    : [{ kind: 'data', start, end }];
  for (const extent of extents) {
    if (extent.kind === 'hole' || sparse) {
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
