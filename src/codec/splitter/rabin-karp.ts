import type { Splitter, SplitterSpec } from './spec.ts';

/** Irreducible polynomial of degree 53. Kopia derives it from Go math/rand, seed 1. */
const POLYNOMIAL = 0x2e3e3e4a305605n;
const DEGREE = 53n;
const WINDOW = 64;

function mod(value: bigint): bigint {
  let rest = value;
  for (let bit = BigInt(rest.toString(2).length - 1); bit >= DEGREE; bit--) {
    if ((rest >> bit) & 1n) rest ^= POLYNOMIAL << (bit - DEGREE);
  }
  return rest;
}

interface Table {
  high: Uint32Array;
  low: Uint32Array;
}

function table(entry: (byte: bigint) => bigint): Table {
  const high = new Uint32Array(256);
  const low = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const value = entry(BigInt(byte));
    high[byte] = Number(value >> 32n);
    low[byte] = Number(value & 0xffffffffn);
  }
  return { high, low };
}

let tables: { out: Table; reduce: Table } | undefined;

/** As in rollinghash/rabinkarp64: the share of a leaving byte; the top 8 bits, reduced. */
function getTables(): { out: Table; reduce: Table } {
  tables ??= {
    out: table((byte) => {
      let hash = byte;
      for (let i = 1; i < WINDOW; i++) hash = mod(hash << 8n);
      return hash;
    }),
    reduce: table((byte) => mod(byte << DEGREE) | (byte << DEGREE)),
  };
  return tables;
}

/** Kopia's RABINKARP splitters: a 64-byte Rabin fingerprint of 53 bits, held in two halves. */
export class RabinKarpSplitter implements Splitter {
  readonly #spec: SplitterSpec;
  readonly #window = new Uint8Array(WINDOW);
  #at = 0;
  #high = 0;
  #low = 0;
  #count = 0;
  #position = 0;

  constructor(spec: SplitterSpec) {
    this.#spec = spec;
  }

  push(data: Uint8Array): number[] {
    const { out, reduce } = getTables();
    const { minBytes, maxBytes, avgBytes } = this.#spec;
    const mask = avgBytes - 1;
    const cuts: number[] = [];
    for (let i = 0; i < data.length; i++) {
      const byte = data[i] as number;
      const leaving = this.#window[this.#at] as number;
      this.#window[this.#at] = byte;
      this.#at = (this.#at + 1) % WINDOW;
      const high = this.#high ^ (out.high[leaving] as number);
      const low = this.#low ^ (out.low[leaving] as number);
      const top = (high >>> 13) & 0xff;
      this.#high = (((high << 8) | (low >>> 24)) ^ (reduce.high[top] as number)) >>> 0;
      this.#low = (((low << 8) | byte) ^ (reduce.low[top] as number)) >>> 0;
      this.#count++;
      const matches = (this.#low & mask) === 0;
      if (this.#count >= minBytes && (matches || this.#count >= maxBytes)) {
        cuts.push(this.#position + i + 1);
        this.#count = 0;
      }
    }
    this.#position += data.length;
    return cuts;
  }

  finish(): number[] {
    return [];
  }
}
