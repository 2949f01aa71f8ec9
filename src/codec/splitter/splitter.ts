import { CodedError } from '../../base/index.ts';
import { BUZHASH_TABLE } from './buzhash-table.ts';
import { RabinKarpSplitter } from './rabin-karp.ts';
import { FastCdcSplitter } from './fastcdc.ts';
import type { Splitter, SplitterKind, SplitterSpec } from './spec.ts';

const KIB = 1024;
const SIZES: Record<string, number> = {
  '128K': 128 * KIB,
  '256K': 256 * KIB,
  '512K': 512 * KIB,
  '1M': 1024 * KIB,
  '2M': 2048 * KIB,
  '4M': 4096 * KIB,
  '8M': 8192 * KIB,
};

/** Kopia's splitters by name (repo/splitter/splitter.go, v0.23.1), and our own FastCDC. */
export const SPLITTERS: ReadonlyMap<string, SplitterSpec> = new Map(
  Object.entries(SIZES)
    .flatMap(([label, bytes]) => [
      dynamic(`DYNAMIC-${label}-BUZHASH`, 'buzhash', bytes),
      dynamic(`DYNAMIC-${label}-RABINKARP`, 'rabin-karp', bytes),
      fixed(`FIXED-${label}`, bytes),
    ])
    .concat([
      dynamic('DYNAMIC', 'buzhash', 4096 * KIB),
      fixed('FIXED', 4096 * KIB),
      // Our own. Kopia does not know it, so the format blob and policies must not hold it.
      dynamic('fastcdc-4m', 'fastcdc', 4096 * KIB),
    ]),
);

export const DEFAULT_SPLITTER = 'DYNAMIC-4M-BUZHASH';

/** Names that the format blob and policies may hold. */
export const KOPIA_SPLITTER_NAMES = [...SPLITTERS.values()]
  .filter((spec) => spec.kind !== 'fastcdc')
  .map((spec) => spec.name);

function dynamic(name: string, kind: SplitterKind, avgBytes: number): [string, SplitterSpec] {
  return [name, { name, kind, minBytes: avgBytes / 2, avgBytes, maxBytes: avgBytes * 2 }];
}

function fixed(name: string, bytes: number): [string, SplitterSpec] {
  return [name, { name, kind: 'fixed', minBytes: bytes, avgBytes: bytes, maxBytes: bytes }];
}

/** The empty name is Kopia's `FIXED` (in old repositories). Throws `UNKNOWN_SPLITTER`. */
export function splitterSpec(name: string): SplitterSpec {
  const spec = SPLITTERS.get(name === '' ? 'FIXED' : name);
  if (!spec) {
    throw new CodedError('UNKNOWN_SPLITTER', `splitter "${name}" is not known`, {
      facts: { splitter: name },
    });
  }
  return spec;
}

export function createSplitter(spec: SplitterSpec): Splitter {
  switch (spec.kind) {
    case 'buzhash':
      return new BuzhashSplitter(spec);
    case 'fixed':
      return new FixedSplitter(spec.maxBytes);
    case 'rabin-karp':
      return new RabinKarpSplitter(spec);
    case 'fastcdc':
      return new FastCdcSplitter(spec);
  }
}

class FixedSplitter implements Splitter {
  readonly #bytes: number;
  #position = 0;
  #next: number;

  constructor(bytes: number) {
    this.#bytes = bytes;
    this.#next = bytes;
  }

  push(data: Uint8Array): number[] {
    const cuts: number[] = [];
    this.#position += data.length;
    for (; this.#next <= this.#position; this.#next += this.#bytes) cuts.push(this.#next);
    return cuts;
  }

  finish(): number[] {
    // A cut at the very end would start an empty chunk, which only an empty object has.
    return [];
  }
}

/** Plain buzhash32, which rolls every byte. The WebAssembly kernel skips; a test compares them. */
export class BuzhashSplitter implements Splitter {
  readonly #spec: SplitterSpec;
  readonly #window = new Uint8Array(64);
  #at = 0;
  #sum = 0;
  #count = 0;
  #position = 0;

  constructor(spec: SplitterSpec) {
    this.#spec = spec;
  }

  push(data: Uint8Array): number[] {
    const { minBytes, maxBytes, avgBytes } = this.#spec;
    const mask = avgBytes - 1;
    const window = this.#window;
    const table = BUZHASH_TABLE;
    const cuts: number[] = [];
    let sum = this.#sum;
    let at = this.#at;
    let count = this.#count;
    for (let i = 0; i < data.length; i++) {
      const byte = data[i] as number;
      sum =
        ((sum << 1) | (sum >>> 31)) ^
        (table[window[at] as number] as number) ^
        (table[byte] as number);
      window[at] = byte;
      at = (at + 1) & 63;
      count++;
      if (count >= minBytes && ((sum & mask) === 0 || count >= maxBytes)) {
        cuts.push(this.#position + i + 1);
        count = 0;
      }
    }
    this.#sum = sum;
    this.#at = at;
    this.#count = count;
    this.#position += data.length;
    return cuts;
  }

  finish(): number[] {
    return [];
  }
}
