import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { buildKernels } from '../../src/codec/wasm/build.ts';

it('kernels.wasm is what its source builds to, and has the hash beside it', async () => {
  const folder = new URL('../../src/codec/wasm/', import.meta.url);
  const checkedIn = readFileSync(new URL('kernels.wasm', folder));
  const digest = createHash('sha256').update(checkedIn).digest('hex');
  expect(readFileSync(new URL('kernels.wasm.sha256', folder), 'utf8')).toBe(
    `${digest}  kernels.wasm\n`,
  );
  expect(Buffer.from(await buildKernels()).equals(checkedIn)).toBe(true);
});
