import { readSync } from 'node:fs';
import { posix } from '../base/index.ts';

/** A range of an open file. */
export interface FileRange {
  readonly descriptor: number;
  readonly offset: number;
  readonly length: number;
}

export interface RangeToCompare extends FileRange {
  readonly hash: Uint8Array;
}

/** Bytes of one read. The parts of all lanes fit in the processor's cache. */
export const READ_BYTES = 128 << 10;
/** Bytes that the kernel reads ahead of the hashing, and bytes of one such request. Our choice. */
const AHEAD_BYTES = 16 << 20;
const ASKED_BYTES = 1 << 20;

/** Reads a range. Bytes behind the file's end read as zeros. Throws like `fs`. */
export function readRangeInto(
  { descriptor, offset }: Omit<FileRange, 'length'>,
  buffer: Uint8Array,
): void {
  let length = 0;
  while (length < buffer.length) {
    const got = readSync(descriptor, buffer, length, buffer.length - length, offset + length);
    if (got === 0) break;
    length += got;
  }
  buffer.fill(0, length);
}

/**
 * The bytes of a range, in parts that reuse `room`. If a read fails, `onFailure` is called once.
 * The rest are arbitrary bytes, so that other ranges continue beside it.
 */
export function* readParts(
  { descriptor, offset, length }: FileRange,
  room: Uint8Array,
  events: { onRead: (bytes: number) => void; onFailure: (error: unknown) => void },
): Generator<Uint8Array> {
  let isFailed = false;
  for (let at = 0; at < length;) {
    const part = room.subarray(0, Math.min(room.length, length - at));
    if (!isFailed) {
      events.onRead(part.length);
      try {
        readRangeInto({ descriptor, offset: offset + at }, part);
      } catch (error) {
        isFailed = true;
        events.onFailure(error);
      }
    }
    at += part.length;
    yield part;
  }
}

/** Makes the kernel read ranges ahead of their reader, in their order. */
export class KernelReads {
  readonly #ranges: readonly FileRange[];
  #next = 0;
  #offset = 0;
  /** Requested and not read yet. */
  #aheadBytes = 0;

  constructor(ranges: readonly FileRange[]) {
    this.#ranges = ranges;
  }

  /** Call it before reading `bytes` bytes. */
  follow(bytes: number): void {
    this.#aheadBytes -= bytes;
    while (this.#aheadBytes <= AHEAD_BYTES - ASKED_BYTES) {
      const range = this.#ranges[this.#next];
      if (!range) return;
      const length = Math.min(ASKED_BYTES, range.length - this.#offset);
      posix().readAhead(range.descriptor, range.offset + this.#offset, length);
      this.#aheadBytes += length;
      this.#offset += length;
      if (this.#offset < range.length) continue;
      this.#next++;
      this.#offset = 0;
    }
  }
}
