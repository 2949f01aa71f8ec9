/**
 * Builds `kernels.wasm` from AssemblyScript: `npm run build:wasm`. This script unrolls the BLAKE2b
 * rounds (12 rounds x 8 mixes, three forms). The rest is plain source in `kernels.as.ts`. The
 * result is checked in beside its SHA-256; a test rebuilds it and compares.
 */
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { lookup } from '../../base/index.ts';

const here = new URL('./', import.meta.url);

/** RFC 7693, section 2.7. Rounds 10 and 11 use rows 0 and 1. */
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const MIXES = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
];
const IV = [
  '0x6a09e667f3bcc908',
  '0xbb67ae8584caa73b',
  '0x3c6ef372fe94f82b',
  '0xa54ff53a5f1d36f1',
  '0x510e527fade682d1',
  '0x9b05688c2b3e6c1f',
  '0x1f83d9abfb41bd6b',
  '0x5be0cd19137e2179',
];

interface Form {
  add: (a: string, b: string) => string;
  xor: (a: string, b: string) => string;
  rotr: (a: string, bits: number) => string;
  v: string;
  m: string;
}

const scalar: Form = {
  add: (a, b) => `(${a} + ${b})`,
  xor: (a, b) => `(${a} ^ ${b})`,
  rotr: (a, bits) => `rotr<u64>(${a}, ${bits})`,
  v: 'v',
  m: 'm',
};
const lanes: Form = {
  add: (a, b) => `i64x2.add(${a}, ${b})`,
  xor: (a, b) => `v128.xor(${a}, ${b})`,
  rotr: (a, bits) => `rotr${bits}x2(${a})`,
  v: 'v',
  m: 'm',
};
/** Other names for the third lane. */
const third: Form = { ...scalar, v: 'z', m: 'n' };

/** `v` names the working vector of a form, and `m` its message. */
function mix(form: Form, [a, b, c, d]: number[], x: number, y: number): string {
  const { add, xor, rotr, v, m } = form;
  return [
    `${v}${a} = ${add(add(`${v}${a}`, `${v}${b}`), `${m}${x}`)};`,
    `${v}${d} = ${rotr(xor(`${v}${d}`, `${v}${a}`), 32)};`,
    `${v}${c} = ${add(`${v}${c}`, `${v}${d}`)};`,
    `${v}${b} = ${rotr(xor(`${v}${b}`, `${v}${c}`), 24)};`,
    `${v}${a} = ${add(add(`${v}${a}`, `${v}${b}`), `${m}${y}`)};`,
    `${v}${d} = ${rotr(xor(`${v}${d}`, `${v}${a}`), 16)};`,
    `${v}${c} = ${add(`${v}${c}`, `${v}${d}`)};`,
    `${v}${b} = ${rotr(xor(`${v}${b}`, `${v}${c}`), 63)};`,
  ].join('\n');
}

/** Every form does a mix before any form does the next mix. */
function rounds(...forms: Form[]): string {
  const out: string[] = [];
  for (let round = 0; round < 12; round++) {
    const row = SIGMA[round % 10] ?? [];
    MIXES.forEach((quad, i) => {
      for (const form of forms) out.push(mix(form, quad, row[2 * i] ?? 0, row[2 * i + 1] ?? 0));
    });
  }
  return out.join('\n');
}

const each = (count: number, line: (i: number) => string): string =>
  Array.from({ length: count }, (_, i) => line(i)).join('\n');

/** Compresses `count` blocks of 128 bytes at `ptr`. The counter grows by `step` before each. */
const oneLane = `
export function blake2b1(state: usize, ptr: usize, count: u32, step: u32, last: u64): void {
  ${each(8, (i) => `let h${i} = load<u64>(state, ${i * 8});`)}
  let t = load<u64>(state, 64);
  for (let block: u32 = 0; block < count; block++) {
    t += step;
    ${each(16, (i) => `const m${i} = load<u64>(ptr, ${i * 8});`)}
    ${each(8, (i) => `let v${i} = h${i};`)}
    ${each(8, (i) => `let v${i + 8}: u64 = ${IV[i] ?? ''};`)}
    v12 ^= t;
    v14 ^= last;
    ${rounds(scalar)}
    ${each(8, (i) => `h${i} ^= v${i} ^ v${i + 8};`)}
    ptr += 128;
  }
  ${each(8, (i) => `store<u64>(state, h${i}, ${i * 8});`)}
  store<u64>(state, t, 64);
}`;

/**
 * Compresses two messages in the lanes of one vector, never their last block. `beside` adds a third
 * message in scalar instructions.
 */
const vectorLanes = (
  signature: string,
  beside: { start: string; block: string; end: string; next: string; forms: Form[] },
): string => `
export function ${signature} {
  ${each(8, (i) => `let h${i} = v128.load64_lane(stateB, v128.load64_zero(stateA, ${i * 8}), 1, ${i * 8});`)}
  let t = v128.load64_lane(stateB, v128.load64_zero(stateA, 64), 1, 64);
  const step = i64x2.splat(128);
  ${beside.start}
  for (let block: u32 = 0; block < count; block++) {
    t = i64x2.add(t, step);
    ${each(16, (i) => `const m${i} = v128.load64_lane(b, v128.load64_zero(a, ${i * 8}), 1, ${i * 8});`)}
    ${each(8, (i) => `let v${i} = h${i};`)}
    ${each(8, (i) => `let v${i + 8} = i64x2.splat(${IV[i] ?? ''});`)}
    v12 = v128.xor(v12, t);
    ${beside.block}
    ${rounds(lanes, ...beside.forms)}
    ${each(8, (i) => `h${i} = v128.xor(h${i}, v128.xor(v${i}, v${i + 8}));`)}
    a += 128;
    b += 128;
    ${beside.next}
  }
  ${each(8, (i) => `v128.store64_lane(stateA, h${i}, 0, ${i * 8}); v128.store64_lane(stateB, h${i}, 1, ${i * 8});`)}
  v128.store64_lane(stateA, t, 0, 64);
  v128.store64_lane(stateB, t, 1, 64);
  ${beside.end}
}`;

const twoLanes = vectorLanes(
  'blake2b2(stateA: usize, stateB: usize, a: usize, b: usize, count: u32): void',
  { start: '', block: '', end: '', next: '', forms: [] },
);

/**
 * Vector instructions wait for each other, on AMD Zen 5 for two cycles each. Scalar instructions
 * fill the gaps. Measured there: 1.64 GB/s, against 1.02 with two lanes and 1.25 with one. A second
 * scalar lane, or a second vector, does not fit into the registers: 1.1 GB/s.
 */
const threeLanes = vectorLanes(
  'blake2b3(stateA: usize, stateB: usize, stateC: usize, a: usize, b: usize, c: usize, count: u32): void',
  {
    start: `${each(8, (i) => `let g${i} = load<u64>(stateC, ${i * 8});`)}
  let u = load<u64>(stateC, 64);`,
    block: `u += 128;
    ${each(16, (i) => `const n${i} = load<u64>(c, ${i * 8});`)}
    ${each(8, (i) => `let z${i} = g${i};`)}
    ${each(8, (i) => `let z${i + 8}: u64 = ${IV[i] ?? ''};`)}
    z12 ^= u;`,
    next: `${each(8, (i) => `g${i} ^= z${i} ^ z${i + 8};`)}
    c += 128;`,
    end: `${each(8, (i) => `store<u64>(stateC, g${i}, ${i * 8});`)}
  store<u64>(stateC, u, 64);`,
    forms: [third],
  },
);

export async function buildKernels(): Promise<Uint8Array> {
  const asc = await import('assemblyscript/asc');
  const plain = readFileSync(new URL('kernels.as.ts', here), 'utf8');
  const files: Record<string, string> = {
    'kernels.ts': `${plain}\n${oneLane}\n${twoLanes}\n${threeLanes}\n`,
  };
  let binary: Uint8Array | undefined;
  const options = {
    readFile: (name: string) => lookup(files, name) ?? null,
    writeFile: (name: string, contents: Uint8Array | string) => {
      if (name === 'kernels.wasm' && typeof contents !== 'string') binary = contents;
    },
    listFiles: () => [],
  };
  const flags =
    '--importMemory --sharedMemory --initialMemory 1 --maximumMemory 65536 --runtime stub';
  const { error } = await asc.main(
    ['kernels.ts', '--outFile', 'kernels.wasm', '-O3', '--noAssert', '--enable', 'simd']
      .concat(['--enable', 'threads', '--enable', 'bulk-memory'])
      .concat(flags.split(' ')),
    options,
  );
  if (error || !binary) throw new Error('asc failed', { cause: error });
  return binary;
}

if (import.meta.main) {
  const binary = await buildKernels();
  writeFileSync(new URL('kernels.wasm', here), binary);
  const digest = createHash('sha256').update(binary).digest('hex');
  writeFileSync(new URL('kernels.wasm.sha256', here), `${digest}  kernels.wasm\n`);
  console.log(`kernels.wasm: ${binary.length} bytes, ${digest}`);
}
