import { createRequire } from 'node:module';
import { assert } from '../../base/index.ts';
import type { Splitter, SplitterSpec } from './spec.ts';

type GetChunks = (bytes: Uint8Array, min: number, avg: number, max: number) => Uint32Array;

/**
 * FastCDC by the `fastcdc-wasm` package, whose one function takes a whole buffer. A chunk at the
 * end of a buffer may end there only because the data did. The splitter keeps it and splits it
 * again with the next bytes. So the cuts do not depend on the slicing of the input.
 */
export class FastCdcSplitter implements Splitter {
  readonly #spec: SplitterSpec;
  readonly #getChunks: GetChunks;
  /** Bytes since the last cut: at most one maximum chunk and a slice. */
  #carry: Uint8Array = new Uint8Array(0);
  /** Offset of the carry in the stream. */
  #start = 0;

  constructor(spec: SplitterSpec) {
    this.#spec = spec;
    const loaded = createRequire(import.meta.url)('fastcdc-wasm') as { get_chunks: GetChunks };
    this.#getChunks = loaded.get_chunks;
  }

  push(data: Uint8Array): number[] {
    const joined = new Uint8Array(this.#carry.length + data.length);
    joined.set(this.#carry);
    joined.set(data, this.#carry.length);
    const { minBytes, maxBytes } = this.#spec;
    const cuts: number[] = [];
    let start = 0;
    // A decision is final once a whole maximum chunk lies before it.
    while (joined.length - start >= maxBytes) {
      const length = this.#firstChunk(joined.subarray(start, start + maxBytes));
      assert(length >= minBytes && length <= maxBytes, 'FastCDC returned a chunk out of bounds');
      start += length;
      cuts.push(this.#start + start);
    }
    this.#carry = joined.slice(start);
    this.#start += start;
    return cuts;
  }

  finish(): number[] {
    const cuts: number[] = [];
    while (this.#carry.length > this.#spec.minBytes) {
      const length = this.#firstChunk(this.#carry);
      this.#carry = this.#carry.subarray(length);
      this.#start += length;
      if (this.#carry.length > 0) cuts.push(this.#start);
    }
    return cuts;
  }

  #firstChunk(bytes: Uint8Array): number {
    const { minBytes, avgBytes, maxBytes } = this.#spec;
    const ends = this.#getChunks(bytes, minBytes, avgBytes, maxBytes);
    const end = ends.length > 1 ? ends[1] : undefined;
    return end === undefined || end === 0 ? bytes.length : end;
  }
}
