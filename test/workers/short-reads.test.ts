import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it, vi } from 'vitest';
import { Arena } from '../../src/codec/index.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';

const READ_BYTES_MAX = 1000;

/**
 * Short reads, as of file systems in user space: fewer bytes than requested, long before the end of
 * the file.
 */
vi.mock('node:fs', async (original) => {
  const real = await original<typeof fs>();
  const readSync = (
    descriptor: number,
    bytes: Uint8Array,
    offset: number,
    length: number,
    position: number | null,
  ): number => real.readSync(descriptor, bytes, offset, Math.min(length, READ_BYTES_MAX), position);
  return { ...real, readSync };
});

const work = tempDirectory('short-reads');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

it('a small file is read to its end, also where each read brings a part of it only', async () => {
  const arena = new Arena(8 << 20);
  const slab = { address: arena.allocate(1 << 20), length: 1 << 20 };
  const keys = {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    secret: new Uint8Array(32),
    masterKey: new Uint8Array(32),
  };
  await using pool = createInProcessPool(keys, arena);
  const sizes = [0, 1, READ_BYTES_MAX - 1, READ_BYTES_MAX, 10_123];
  const files = sizes.map((sizeBytes, i) => {
    const path = join(work, String(i));
    fs.writeFileSync(path, noise(path, sizeBytes));
    return { path, sizeBytes };
  });
  // A file that became shorter after it was listed.
  files.push({ path: join(work, '4'), sizeBytes: 20_000 });
  const reads = await pool.readFiles(files, slab);
  expect(reads.map(({ length, grew }) => [length, grew])).toEqual(
    [...sizes, 10_123].map((size) => [size, false]),
  );
  for (const [i, { offset, length }] of reads.entries()) {
    const bytes = arena.bytes.subarray(slab.address + offset, slab.address + offset + length);
    expect(Buffer.from(bytes).equals(fs.readFileSync((files[i] as { path: string }).path))).toBe(
      true,
    );
  }
  const grown = await pool.readFiles([{ path: join(work, '4'), sizeBytes: 10_122 }], slab);
  expect(grown[0]?.grew).toBe(true);
});
