import { expect, it } from 'vitest';
import { Arena } from '../../src/codec/index.ts';
import { createInProcessPool, createThreadPool } from '../../src/workers/index.ts';
import { poolContract } from '../contract/pool.ts';
import { prng } from '../support/golden.ts';

poolContract('in process', createInProcessPool);
poolContract('two threads', createThreadPool(2));

it('after it was closed a pool refuses work', async () => {
  const keys = {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    secret: prng('s', 32),
    masterKey: prng('m', 32),
  };
  const pool = createThreadPool(1)(keys, new Arena(1 << 20));
  await pool.close();
  await expect(pool.hash([[]])).rejects.toMatchObject({ code: 'POOL_CLOSED' });
});
