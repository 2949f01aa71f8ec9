import { readFileSync } from 'node:fs';
import { BUZHASH_TABLE } from '../splitter/buzhash-table.ts';
import { assert } from '../../base/index.ts';
import type { Spans } from '../byte-spans.ts';
import type { SplitterSpec } from '../splitter/spec.ts';
import {
  BLAKE2B_BLOCK,
  type Blake2bKernel,
  type Blake2bKey,
  Blake2bLane,
  type Blake2bResume,
  type LaneOptions,
} from './blake2b-lane.ts';

interface Exports extends Blake2bKernel {
  cutBuzhash(
    table: number,
    ptr: number,
    len: number,
    count: number,
    min: number,
    max: number,
    mask: number,
    out: number,
  ): number;
  sha256Block(k: number, w: number, state: number, ptr: number): void;
  blake2b2(stateA: number, stateB: number, a: number, b: number, count: number): void;
  blake2b3(
    stateA: number,
    stateB: number,
    stateC: number,
    a: number,
    b: number,
    c: number,
    count: number,
  ): void;
}

const PAGE = 65_536;
/** Constant tables lie below this address. Scratch areas of the threads and the arena follow. */
const TABLES_END = PAGE;
const BUZHASH_AT = 1024;
const SHA256_K_AT = 4096;
/** Scratch of one thread: states, blocks, cut lists and a window for copies. */
const SCRATCH_BYTES = 2 * PAGE;
/** Worker threads that share one memory. Our choice: the main thread is the limit before that. */
export const THREADS_MAX = 64;
/** The main thread has an area too. */
const SCRATCH_AREAS = THREADS_MAX + 1;
/** The arena starts here. */
export const ARENA_START = TABLES_END + SCRATCH_AREAS * SCRATCH_BYTES;

/** Messages that are hashed in parallel. */
export const HASH_LANES = 3;
/** States and blocks of the lanes, 128 bytes apart. */
const STATES = 0;
const BLOCKS = 384;
const SHA_STATE = 768;
const SHA_BLOCK = 832;
const SHA_W = 1024;
const CUTS = 4096;
const CUTS_MAX = 4096;
const WINDOW = 32_768;
const WINDOW_BYTES = SCRATCH_BYTES - WINDOW;
const LANE_BYTES = 128;
/** Each lane has a part of the window, of whole blocks. */
const LANE_WINDOW_BYTES = Math.floor(WINDOW_BYTES / HASH_LANES / BLAKE2B_BLOCK) * BLAKE2B_BLOCK;

/** FIPS 180-4, 4.2.2. */
const SHA256_K = Uint32Array.from(
  `428a2f98 71374491 b5c0fbcf e9b5dba5 3956c25b 59f111f1 923f82a4 ab1c5ed5 d807aa98 12835b01 243185be
550c7dc3 72be5d74 80deb1fe 9bdc06a7 c19bf174 e49b69c1 efbe4786 0fc19dc6 240ca1cc 2de92c6f 4a7484aa
5cb0a9dc 76f988da 983e5152 a831c66d b00327c8 bf597fc7 c6e00bf3 d5a79147 06ca6351 14292967 27b70a85
2e1b2138 4d2c6dfc 53380d13 650a7354 766a0abb 81c2c92e 92722c85 a2bfe8a1 a81a664b c24b8b70 c76c51a3
d192e819 d6990624 f40e3585 106aa070 19a4c116 1e376c08 2748774c 34b0bcb5 391c0cb3 4ed8aa4a 5b9cca4f
682e6ff3 748f82ee 78a5636f 84c87814 8cc70208 90befffa a4506ceb bef9a3f7 c67178f2`
    .split(/\s+/)
    .map((word) => Number.parseInt(word, 16)),
);
const SHA256_INIT = Uint32Array.of(
  0x6a09e667,
  0xbb67ae85,
  0x3c6ef372,
  0xa54ff53a,
  0x510e527f,
  0x9b05688c,
  0x1f83d9ab,
  0x5be0cd19,
);
const BLAKE2B_IV = BigUint64Array.of(
  0x6a09e667f3bcc908n,
  0xbb67ae8584caa73bn,
  0x3c6ef372fe94f82bn,
  0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n,
  0x9b05688c2b3e6c1fn,
  0x1f83d9abfb41bd6bn,
  0x5be0cd19137e2179n,
);

const wasmModule = new WebAssembly.Module(readFileSync(new URL('kernels.wasm', import.meta.url)));

/** A message that is read while it is hashed. */
export interface StreamedMessage {
  readonly length: number;
  /** Yields `length` bytes; each part is valid until the next. No other message uses `lane`. */
  read(lane: number): Iterable<Uint8Array>;
}

/** Memory for {@link Kernels}, and `arenaBytes` for slabs and packs. Unused pages cost nothing. */
export function createKernelMemory(arenaBytes: number): WebAssembly.Memory {
  const pages = Math.ceil((ARENA_START + arenaBytes) / PAGE);
  return new WebAssembly.Memory({ initial: pages, maximum: 65_536, shared: true });
}

/** The WebAssembly kernels of one thread. Threads must not share one: each has a scratch area. */
export class Kernels {
  readonly memory: WebAssembly.Memory;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #wasm: Exports;
  readonly #scratch: number;

  constructor(memory: WebAssembly.Memory, threadIndex: number) {
    assert(threadIndex < SCRATCH_AREAS, 'more threads than scratch areas');
    this.memory = memory;
    this.#bytes = new Uint8Array(memory.buffer);
    this.#view = new DataView(memory.buffer);
    const instance = new WebAssembly.Instance(wasmModule, { env: { memory, abort: abortKernel } });
    this.#wasm = instance.exports as unknown as Exports;
    this.#scratch = TABLES_END + threadIndex * SCRATCH_BYTES;
    // Every thread writes the same constants, so the order does not matter.
    new Uint32Array(memory.buffer, BUZHASH_AT, 256).set(BUZHASH_TABLE);
    new Uint32Array(memory.buffer, SHA256_K_AT, 64).set(SHA256_K);
  }

  /** Address of bytes in the shared memory; -1 for other bytes. */
  addressOf(bytes: Uint8Array): number {
    return bytes.buffer === this.memory.buffer ? bytes.byteOffset : -1;
  }

  /**
   * Cut points of buzhash32 as offsets in the piece at `address`. The 64 bytes before it must be
   * those before it in the stream. `count` is the length of the open chunk before the piece.
   */
  cutBuzhash(spec: SplitterSpec, address: number, length: number, count: number): number[] {
    assert(length / spec.minBytes + 2 < CUTS_MAX, 'chunk too long for the cut list');
    const out = this.#scratch + CUTS;
    const { minBytes, maxBytes, avgBytes } = spec;
    const found = this.#wasm.cutBuzhash(
      BUZHASH_AT,
      address,
      length,
      count,
      minBytes,
      maxBytes,
      avgBytes - 1,
      out,
    );
    return Array.from({ length: found }, (_, i) => this.#view.getUint32(out + 4 * i, true));
  }

  /** Prepares a key (at most 64 bytes) for digests of 32 bytes. */
  blake2bKey(key: Uint8Array): Blake2bKey {
    assert(key.length > 0 && key.length <= 64, 'BLAKE2b keys have 1 to 64 bytes');
    const keyBlock = new Uint8Array(BLAKE2B_BLOCK);
    keyBlock.set(key);
    const words = BigUint64Array.from(BLAKE2B_IV);
    words[0] = (words[0] as bigint) ^ 0x01010020n ^ (BigInt(key.length) << 8n);
    const initial = new Uint8Array(72);
    initial.set(new Uint8Array(words.buffer));
    const state = this.#scratch + STATES;
    this.#bytes.set(initial, state);
    this.#bytes.set(keyBlock, this.#scratch + BLOCKS);
    this.#wasm.blake2b1(state, this.#scratch + BLOCKS, 1, BLAKE2B_BLOCK, 0n);
    return { initial, state: this.#bytes.slice(state, state + 72), keyBlock };
  }

  blake2b(key: Blake2bKey, message: Spans): Uint8Array {
    const lane = this.#laneOf(key, 0, message);
    while (lane.advance() > 0) lane.run(lane.available);
    return lane.finish();
  }

  /** Digests of all messages, in parallel lanes. An ended message gives its lane to the next. */
  blake2bAll(key: Blake2bKey, messages: readonly StreamedMessage[]): Uint8Array[] {
    const digests: Uint8Array[] = [];
    let next = 0;
    /** Hashes messages without whole blocks at once. Returns the next other message, if any. */
    const begin = (at: number): { number: number; lane: Blake2bLane } | undefined => {
      for (;;) {
        const number = next++;
        const message = messages[number];
        if (!message) return undefined;
        const lane = this.#lane(key, at, { length: message.length, spans: message.read(at) });
        if (lane.advance() > 0) return { number, lane };
        digests[number] = lane.finish();
      }
    };
    const under = Array.from({ length: HASH_LANES }, (_, at) => begin(at));
    for (;;) {
      const lanes = under.flatMap((one) => one?.lane ?? []);
      if (lanes.length === 0) return digests;
      this.#runBeside(lanes);
      under.forEach((one, at) => {
        if (!one || one.lane.advance() > 0) return;
        digests[one.number] = one.lane.finish();
        under[at] = begin(at);
      });
    }
  }

  /** Hashes a message to its end, or several as far as the shortest goes. */
  blake2bPartly(
    key: Blake2bKey,
    messages: readonly { spans: Spans; resume?: Blake2bResume | undefined }[],
  ): ({ digest: Uint8Array } | { resume: Blake2bResume })[] {
    assert(messages.length <= HASH_LANES, 'no more messages than lanes');
    const lanes = messages.map(({ spans, resume }, i) => this.#laneOf(key, i, spans, resume));
    while (lanes.every((lane) => lane.advance() > 0)) this.#runBeside(lanes);
    return lanes.map((lane) =>
      lane.advance() === 0 ? { digest: lane.finish() } : { resume: lane.pause() },
    );
  }

  /** Advances all lanes by the blocks that every lane has. Each must have whole blocks. */
  #runBeside([first, second, third]: readonly Blake2bLane[]): void {
    assert(first, 'a lane');
    if (!second) {
      first.run(first.available);
      return;
    }
    const blocks = Math.min(
      first.available,
      second.available,
      third ? third.available : Number.MAX_SAFE_INTEGER,
    );
    if (third) {
      this.#wasm.blake2b3(
        first.state,
        second.state,
        third.state,
        first.address,
        second.address,
        third.address,
        blocks,
      );
      third.skip(blocks);
    } else {
      this.#wasm.blake2b2(first.state, second.state, first.address, second.address, blocks);
    }
    first.skip(blocks);
    second.skip(blocks);
  }

  #laneOf(key: Blake2bKey, at: number, spans: Spans, resume?: Blake2bResume): Blake2bLane {
    return this.#lane(key, at, { length: lengthOf(spans), spans }, resume);
  }

  #lane(
    key: Blake2bKey,
    at: number,
    message: LaneOptions['message'],
    resume?: Blake2bResume,
  ): Blake2bLane {
    return new Blake2bLane({
      key,
      message,
      resume,
      wasm: this.#wasm,
      bytes: this.#bytes,
      state: this.#scratch + STATES + at * LANE_BYTES,
      block: this.#scratch + BLOCKS + at * LANE_BYTES,
      window: this.#scratch + WINDOW + at * LANE_WINDOW_BYTES,
      windowBytes: LANE_WINDOW_BYTES,
    });
  }

  /** The two states of HMAC-SHA256 after the key's pads, for {@link hmacSha256Short}. */
  hmacSha256Key(key: Uint8Array): { inner: Uint8Array; outer: Uint8Array } {
    assert(key.length <= 64, 'a longer key must be hashed first');
    const pad = (value: number): Uint8Array => {
      const block = new Uint8Array(64).fill(value);
      key.forEach((byte, i) => (block[i] = byte ^ value));
      this.#bytes.set(new Uint8Array(SHA256_INIT.buffer), this.#scratch + SHA_STATE);
      return this.#sha256Block(block).slice();
    };
    return { inner: pad(0x36), outer: pad(0x5c) };
  }

  /** HMAC-SHA256 of a message of at most 55 bytes: two compressions. */
  hmacSha256Short(key: { inner: Uint8Array; outer: Uint8Array }, message: Uint8Array): Uint8Array {
    assert(message.length <= 55, 'message too long for one block');
    const block = new Uint8Array(64);
    const finish = (state: Uint8Array, text: Uint8Array): Uint8Array => {
      block.fill(0);
      block.set(text);
      block[text.length] = 0x80;
      new DataView(block.buffer).setUint32(60, (64 + text.length) * 8);
      this.#bytes.set(state, this.#scratch + SHA_STATE);
      const out = this.#sha256Block(block);
      const words = new DataView(out.buffer, out.byteOffset, 32);
      const digest = new Uint8Array(32);
      const view = new DataView(digest.buffer);
      for (let i = 0; i < 32; i += 4) view.setUint32(i, words.getUint32(i, true));
      return digest;
    };
    return finish(key.outer, finish(key.inner, message));
  }

  #sha256Block(block: Uint8Array): Uint8Array {
    const state = this.#scratch + SHA_STATE;
    this.#bytes.set(block, this.#scratch + SHA_BLOCK);
    this.#wasm.sha256Block(SHA256_K_AT, this.#scratch + SHA_W, state, this.#scratch + SHA_BLOCK);
    return this.#bytes.subarray(state, state + 32);
  }
}

function abortKernel(): never {
  throw new Error('a WebAssembly kernel aborted');
}

const lengthOf = (spans: Spans): number => spans.reduce((sum, { length }) => sum + length, 0);
