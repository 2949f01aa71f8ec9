import { createCipheriv, createHash } from 'node:crypto';

/** Incompressible bytes of a seed: 1 GB/s. The golden inputs' `prng` has 10 MB/s. */
export function noise(seed: string, length: number): Buffer {
  const key = createHash('sha256').update(seed).digest();
  return createCipheriv('aes-256-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(length));
}
