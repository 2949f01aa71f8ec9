import { readSync } from 'node:fs';
import { posix } from '../base/index.ts';

/** A range of an open file. */
export interface FileRange {
  readonly descriptor: number;
  readonly offset: number;
  readonly length: number;
}

/** The same with the content hash that its bytes should have. */
export interface RangeToCompare extends FileRange {
  readonly hash: Uint8Array;
}

/**
 * What is read at once: small enough that the parts of all lanes are still in the processor's cache
 * when they are hashed.
 */
export const READ_BYTES = 128 << 10;
/**
 * How far the kernel reads ahead of what is being hashed, and how much it is asked for at once. Our
 * choice.
 */
const AHEAD_BYTES = 16 << 20;
const ASKED_BYTES = 1 << 20;

/** Reads a range. What lies behind the file's end reads as zeros. Throws like `fs`. */
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
 * The bytes of a range, part by part in the same room. When it cannot be read, that is told once,
 * and the rest are bytes that say nothing: whoever hashes several side by side goes on.
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

/**
 * Has the kernel read ranges ahead, in their order, as far before whoever reads them as is useful.
 */
export class KernelReads {
  readonly #ranges: readonly FileRange[];
  #next = 0;
  #offset = 0;
  /** Asked for and not read yet. */
  #aheadBytes = 0;

  constructor(ranges: readonly FileRange[]) {
    this.#ranges = ranges;
  }

  /** So many bytes are read now. */
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
