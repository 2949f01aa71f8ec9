import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  type AfterRun,
  loadAfterRun,
  nothingLeft,
  storeAfterRun,
} from '../../../src/server/restores/contract.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const RESTORE = { name: 'r1', uid: 'u1' };
const KEY = 'restores/r1/longshore-after-run.json.gz';
const LEFT: AfterRun = {
  ...nothingLeft('u1'),
  claims: [
    {
      namespace: 'app',
      name: 'data',
      backupMethod: 'CSISnapshot',
      reclaimPolicy: 'Retain',
      labels: { tier: 'gold' },
    },
  ],
  podVolumes: [{ name: 'r1-x', claim: 'data' }],
  hooks: {
    attempted: 3,
    failed: 1,
    pods: [{ namespace: 'app', name: 'p', uid: 'p1', waitedMs: 5, open: ['p1/spec/h/web/0'] }],
    failures: [{ time: '2026-11-21T02:00:00Z', namespace: 'app', name: 'p', message: 'no' }],
  },
  finalizingSince: '2026-11-21T02:00:00Z',
};

const stored = async (value: unknown): Promise<AfterRun | undefined> => {
  const bucket = new MemoryBucket();
  await bucket.put(KEY, [gzipSync(JSON.stringify(value))]);
  return loadAfterRun(bucket, RESTORE);
};

describe('what a run leaves', () => {
  it('is read as it was stored', async () => {
    const bucket = new MemoryBucket();
    await storeAfterRun(bucket, RESTORE, LEFT);
    expect([...bucket.objects.keys()]).toEqual([KEY]);
    expect(await loadAfterRun(bucket, RESTORE)).toEqual(LEFT);
  });

  it('is nothing where no file is, or one of an earlier Restore of the name', async () => {
    const bucket = new MemoryBucket();
    expect(await loadAfterRun(bucket, RESTORE)).toBeUndefined();
    await storeAfterRun(bucket, RESTORE, LEFT);
    expect(await loadAfterRun(bucket, { name: 'r1', uid: 'u2' })).toBeUndefined();
  });

  it('is refused where it is damaged, or of another version', async () => {
    const bad = { code: 'DAMAGED_ARCHIVE' };
    await expect(stored({ ...LEFT, version: 2 })).rejects.toMatchObject(bad);
    await expect(stored({ ...LEFT, more: 1 })).rejects.toMatchObject(bad);
    await expect(stored({ ...LEFT, hooks: undefined })).rejects.toMatchObject(bad);
    const bucket = new MemoryBucket();
    await bucket.put(KEY, [gzipSync(JSON.stringify(LEFT)).subarray(0, 40)]);
    await expect(loadAfterRun(bucket, RESTORE)).rejects.toMatchObject(bad);
  });

  it('is bounded for writers and readers alike', async () => {
    const claims = Array.from({ length: 70 }, (_, i) => ({
      namespace: 'app',
      name: `c${i}`,
      backupMethod: 'CSISnapshot',
      reclaimPolicy: '',
      labels: { long: String(i).repeat(1 << 20) },
    }));
    const long = { ...LEFT, claims };
    await expect(storeAfterRun(new MemoryBucket(), RESTORE, long)).rejects.toMatchObject({
      code: 'AFTER_RUN_TOO_LONG',
    });
    await expect(stored(long)).rejects.toMatchObject({ code: 'DAMAGED_ARCHIVE' });
  });
});
