import { registerHooks } from 'node:module';
import { afterAll, describe, expect, it } from 'vitest';
import { createHasher, createKernelMemory, Kernels } from '../../src/codec/index.ts';
import { nativeBlake } from '../../src/codec/hashing/hashing.ts';
import { goldenJson, prng } from '../support/golden.ts';

const hooks = registerHooks({
  resolve(specifier, context, next) {
    if (specifier.startsWith('@napi-rs/blake-hash')) throw new Error('it is not installed');
    return next(specifier, context);
  },
});
afterAll(() => {
  hooks.deregister();
});

interface HashVector {
  algorithm: string;
  secretHex: string;
  outputs: { hash: string; length: number; seed: string }[];
}
const { vectors } = goldenJson<{ vectors: HashVector[] }>('vectors/hash-vectors.json');
const blakes = vectors.filter(({ algorithm }) => /^BLAKE(2S|3)/.test(algorithm));

describe('without the compiled library', () => {
  it.each(blakes)("$algorithm equals Kopia's", ({ algorithm, secretHex, outputs }) => {
    const secret = Buffer.from(secretHex, 'hex');
    expect(nativeBlake(algorithm, secret)).toBeUndefined();
    const hasher = createHasher(algorithm, secret, new Kernels(createKernelMemory(1 << 20), 0));
    for (const { hash, length, seed } of outputs) {
      expect(Buffer.from(hasher.hash([prng(seed, length)])).toString('hex')).toBe(hash);
    }
  });
});
