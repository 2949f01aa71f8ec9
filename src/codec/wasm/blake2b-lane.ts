import { assert } from '../../base/index.ts';

export const BLAKE2B_BLOCK = 128;
const NO_BYTES = new Uint8Array(0);

/** `last` is all ones for the last block of a message, else 0. */
export interface Blake2bKernel {
  blake2b1(state: number, ptr: number, count: number, step: number, last: bigint): void;
}

/**
 * A keyed BLAKE2b-256: its state before and after the key block, and the block itself. The hash of
 * the empty message ends with that block.
 */
export interface Blake2bKey {
  readonly initial: Uint8Array;
  readonly state: Uint8Array;
  readonly keyBlock: Uint8Array;
}

export interface Blake2bResume {
  readonly state: Uint8Array;
  /** Bytes of the message in the state: whole blocks. */
  readonly offset: number;
}

export interface LaneOptions {
  key: Blake2bKey;
  message: { readonly length: number; readonly spans: Iterable<Uint8Array> };
  resume: Blake2bResume | undefined;
  wasm: Blake2bKernel;
  bytes: Uint8Array;
  /** Addresses of 128 bytes each. */
  state: number;
  block: number;
  /** Window for bytes from outside the memory: its address, and its length in whole blocks. */
  window: number;
  windowBytes: number;
}

/** A BLAKE2b message in progress: walks the spans in whole blocks and bridges their borders. */
export class Blake2bLane {
  readonly state: number;
  /** Address of the next whole blocks, valid after `advance`. */
  address = 0;
  available = 0;
  readonly #options: LaneOptions;
  readonly #spans: Iterator<Uint8Array>;
  #span: Uint8Array = NO_BYTES;
  #offset = 0;
  #remaining: number;
  /** The part [start, end) of a span outside the shared memory that is in the window. */
  #shownFrom = 0;
  #shownTo = 0;
  #isShown = false;

  constructor(options: LaneOptions) {
    this.#options = options;
    this.state = options.state;
    this.#spans = options.message.spans[Symbol.iterator]();
    this.#remaining = options.message.length;
    options.bytes.set(options.resume?.state ?? options.key.state, this.state);
    if (options.resume) this.#seek(options.resume.offset);
  }

  #seek(bytes: number): void {
    this.#remaining -= bytes;
    this.#offset = bytes;
    while (this.#remaining > 0 && this.#offset >= this.#span.length) this.#nextSpan();
  }

  /** The offset may exceed the finished span. The rest counts from the start of the next span. */
  #nextSpan(): void {
    const next = this.#spans.next();
    assert(next.done !== true, 'the spans of a message are as long as it');
    this.#offset -= this.#span.length;
    this.#span = next.value;
    this.#isShown = false;
  }

  /** The position in the message, to continue in another lane. */
  pause(): Blake2bResume {
    const { bytes, message } = this.#options;
    const state = bytes.slice(this.state, this.state + 72);
    return { state, offset: message.length - this.#remaining };
  }

  /** Makes whole blocks available and returns their number; 0 if only the last block is left. */
  advance(): number {
    while (this.#remaining > BLAKE2B_BLOCK) {
      const inSpan = this.#span.length - this.#offset;
      if (inSpan === 0) {
        this.#nextSpan();
        continue;
      }
      // The last block of the message is never "whole": it is compressed with the final flag.
      const usable = Math.min(inSpan, this.#remaining - 1);
      if (usable >= BLAKE2B_BLOCK) {
        this.available = Math.floor(this.#show(usable) / BLAKE2B_BLOCK);
        return this.available;
      }
      this.#copyOut(BLAKE2B_BLOCK);
      this.#options.wasm.blake2b1(this.state, this.#options.block, 1, BLAKE2B_BLOCK, 0n);
    }
    return 0;
  }

  run(blocks: number): void {
    this.#options.wasm.blake2b1(this.state, this.address, blocks, BLAKE2B_BLOCK, 0n);
    this.skip(blocks);
  }

  skip(blocks: number): void {
    this.#offset += blocks * BLAKE2B_BLOCK;
    this.#remaining -= blocks * BLAKE2B_BLOCK;
  }

  /** Compresses the last block and returns the 32-byte digest. */
  finish(): Uint8Array {
    const { wasm, bytes, block, key, message } = this.#options;
    const length = this.#remaining;
    bytes.fill(0, block, block + BLAKE2B_BLOCK);
    if (message.length === 0) {
      // The key block is the last block. Compress it again, with the final flag.
      bytes.set(key.initial, this.state);
      bytes.set(key.keyBlock, block);
      wasm.blake2b1(this.state, block, 1, BLAKE2B_BLOCK, 0xffffffffffffffffn);
    } else {
      this.#copyOut(length);
      wasm.blake2b1(this.state, block, 1, length, 0xffffffffffffffffn);
    }
    return bytes.slice(this.state, this.state + 32);
  }

  /** Sets `address` to the current bytes. Returns how many of `usable` are contiguous. */
  #show(usable: number): number {
    const { bytes, window, windowBytes } = this.#options;
    if (this.#span.buffer === bytes.buffer) {
      this.address = this.#span.byteOffset + this.#offset;
      return usable;
    }
    const isShown = this.#isShown && this.#offset >= this.#shownFrom;
    if (!isShown || this.#shownTo - this.#offset < BLAKE2B_BLOCK) {
      this.#isShown = true;
      this.#shownFrom = this.#offset;
      this.#shownTo = Math.min(this.#span.length, this.#offset + windowBytes);
      bytes.set(this.#span.subarray(this.#shownFrom, this.#shownTo), window);
    }
    this.address = window + this.#offset - this.#shownFrom;
    return Math.min(usable, this.#shownTo - this.#offset);
  }

  /** Copies the next bytes to the block area, across span borders. */
  #copyOut(length: number): void {
    let to = this.#options.block;
    let left = length;
    while (left > 0) {
      if (this.#offset === this.#span.length) this.#nextSpan();
      const take = Math.min(left, this.#span.length - this.#offset);
      this.#options.bytes.set(this.#span.subarray(this.#offset, this.#offset + take), to);
      to += take;
      left -= take;
      this.#offset += take;
      this.#remaining -= take;
    }
  }
}
