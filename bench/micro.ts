/**
 * `node bench/micro.ts`: compares the candidates for each step of the data path on one thread. The
 * candidate in use is marked, and the others show the reason. Also measures the dedup of
 * generations and the index.
 */
import { createCipheriv, createHash, randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import { blake2b } from '@noble/hashes/blake2.js';
import { blake3 } from '@noble/hashes/blake3.js';
import {
  Arena,
  COMPRESSORS,
  createEncryptor,
  createHasher,
  createSplitter,
  Kernels,
  splitterSpec,
} from '../src/codec/index.ts';

const BYTES = 4 << 20;
const arena = new Arena(64 << 20);
const kernels = new Kernels(arena.memory, 0);
const [a, b, out] = [arena.allocate(BYTES), arena.allocate(BYTES), arena.allocate(BYTES + 4096)];
const view = (address: number, length = BYTES): Uint8Array => arena.view({ address, length });
for (const address of [a, b]) view(address).set(randomBytes(BYTES));
const heap = randomBytes(BYTES);
const secret = randomBytes(32);

/** Runs for at least this long after a warm-up. */
const LEAST_MS = 600;

function rate(bytes: number, work: () => void): string {
  work();
  const start = performance.now();
  let rounds = 0;
  for (; performance.now() - start < LEAST_MS; rounds++) work();
  const seconds = (performance.now() - start) / 1000;
  return `${((rounds * bytes) / seconds / 1e9).toFixed(2)} GB/s`;
}

function each(count: number, work: () => void): string {
  for (let i = 0; i < count; i++) work();
  const start = performance.now();
  for (let i = 0; i < count; i++) work();
  return `${(((performance.now() - start) * 1000) / count).toFixed(1)} us`;
}

const rows: [string, string, string][] = [];
const add = (step: string, candidate: string, figure: string): void => {
  rows.push([step, candidate, figure]);
  console.log(`${step.padEnd(28)} ${candidate.padEnd(46)} ${figure}`);
};

const spec = splitterSpec('DYNAMIC-4M-BUZHASH');
add(
  'split, every byte scanned',
  'WebAssembly (in use)',
  rate(BYTES, () => kernels.cutBuzhash({ ...spec, avgBytes: 1 << 30 }, a, BYTES, spec.minBytes)),
);
add(
  'split, every byte scanned',
  'TypeScript (its oracle)',
  rate(BYTES, () => createSplitter({ ...spec, minBytes: 64 }).push(view(a))),
);
add(
  'split, FastCDC',
  'fastcdc-wasm (in use for fastcdc-4m)',
  rate(BYTES, () => createSplitter(splitterSpec('fastcdc-4m')).push(view(a))),
);

const hasher = createHasher('BLAKE2B-256-128', secret, kernels);
const some = (count: number): unknown =>
  hasher.hashAll([[view(a)], [view(b)], [view(out)]].slice(0, count));
add(
  'hash, BLAKE2b keyed',
  'WebAssembly, two in SIMD lanes, one beside (in use)',
  rate(3 * BYTES, () => some(3)),
);
add(
  'hash, BLAKE2b keyed',
  'WebAssembly, two in SIMD lanes (in use for the last)',
  rate(2 * BYTES, () => some(2)),
);
add(
  'hash, BLAKE2b keyed',
  'WebAssembly, one (in use for the last)',
  rate(BYTES, () => hasher.hash([view(a)])),
);
add(
  'hash, BLAKE2b keyed',
  '@noble/hashes (its oracle)',
  rate(1 << 20, () => blake2b(heap.subarray(0, 1 << 20), { key: secret })),
);
add(
  'hash, BLAKE3',
  '@noble/hashes (in use where asked for)',
  rate(1 << 20, () => blake3(heap.subarray(0, 1 << 20))),
);
add(
  'hash, HMAC-SHA256',
  'node:crypto (in use where asked for)',
  rate(BYTES, () => createHash('sha256').update(heap).digest()),
);

const encryptor = createEncryptor('AES256-GCM-HMAC-SHA256', secret, kernels);
const iv = randomBytes(16);
add(
  'encrypt 4 MiB, AES-256-GCM',
  'node:crypto, slices given back (in use)',
  rate(BYTES, () => encryptor.seal([view(a)], iv, view(out, BYTES + 28))),
);
const nonce = randomBytes(12);
add(
  'encrypt 4 MiB, AES-256-GCM',
  'node:crypto, slices left to the collector',
  rate(BYTES, () => {
    const cipher = createCipheriv('aes-256-gcm', secret, nonce);
    for (let at = 0; at < BYTES; at += 131_072) {
      view(out).set(cipher.update(view(a + at, 131_072)), at);
    }
    cipher.final();
  }),
);
add(
  'encrypt 4 MiB, AES-256-GCM',
  'node:crypto, one update',
  rate(BYTES, () => {
    const cipher = createCipheriv('aes-256-gcm', secret, nonce);
    view(out).set(cipher.update(view(a)));
    cipher.final();
  }),
);
add(
  'encrypt 8 KiB, AES-256-GCM',
  'node:crypto, key as an object (in use)',
  each(20_000, () => encryptor.seal([view(a, 8192)], iv, view(out, 8220))),
);
add(
  'encrypt 8 KiB, AES-256-GCM',
  'node:crypto, key as bytes',
  each(20_000, () => {
    const cipher = createCipheriv('aes-256-gcm', secret, nonce);
    cipher.setAAD(iv);
    view(out).set(cipher.update(view(a, 8192)));
    cipher.final();
    cipher.getAuthTag();
  }),
);

const key = kernels.hmacSha256Key(secret);
add(
  'key of a content',
  'WebAssembly, pads prepared (in use)',
  each(20_000, () => kernels.hmacSha256Short(key, iv)),
);
const { createHmac } = createRequire(import.meta.url)(
  'node:crypto',
) as typeof import('node:crypto');
add(
  'key of a content',
  'node:crypto createHmac',
  each(20_000, () => createHmac('sha256', secret).update(iv).digest()),
);

const text = Buffer.from('the same words in another order, again and again: '.repeat(84_000));
for (let at = 0; at < text.length; at += 97) text[at] = heap[at % BYTES] ?? 0;
for (const { name, compress } of COMPRESSORS) {
  if (!compress || /best-compression|better/.test(name)) continue;
  const out = Buffer.alloc(text.length);
  const packed = (compress([text], out) ?? 0) / text.length;
  add(
    `compress to ${(100 * packed).toFixed(0)} %`,
    name.startsWith('zstd') ? `${name}, zstd-napi (in use)` : `${name}, node:zlib (in use)`,
    rate(text.length, () => compress([text], out)),
  );
}
