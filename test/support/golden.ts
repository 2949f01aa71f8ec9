import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

const golden = new URL('../golden/kopia/', import.meta.url);

export function goldenPath(name: string): string {
  return new URL(name, golden).pathname;
}

export function goldenJson<T>(name: string): T {
  return JSON.parse(readFileSync(new URL(name, golden), 'utf8')) as T;
}

/** The generator of the golden inputs: block(i) = SHA-256(seed || u64be(i)). */
export function prng(seed: string, length: number): Buffer {
  const out = Buffer.alloc(Math.ceil(length / 32) * 32);
  const counter = Buffer.alloc(8);
  for (let at = 0; at < length; at += 32) {
    counter.writeBigUInt64BE(BigInt(at / 32));
    createHash('sha256').update(seed).update(counter).digest().copy(out, at);
  }
  return out.subarray(0, length);
}
