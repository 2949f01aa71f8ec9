import { expect, it } from 'vitest';
import type { Repository } from '../../src/repository/index.ts';
import { findSnapshotId } from '../../src/snapshot/index.ts';

const ids = ['0', '1', '2', '3', '4', '5', '6'].map((digit) => digit.padStart(32, 'ab'));
const labels = { hostname: 'host', username: 'ann', path: '/data' };
const repository = {
  manifests: { find: () => Promise.resolve(ids.map((id) => ({ id, labels }))) },
} as unknown as Repository;

it('the beginning of several is refused with what they are', async () => {
  await expect(findSnapshotId(repository, 'abab')).rejects.toMatchObject({
    code: 'AMBIGUOUS_SNAPSHOT',
    message: expect.stringMatching(
      /beginning of 7 snapshots: (\w{32} \(ann@host:\/data\), ){4}\w{32} \(ann@host:\/data\) and 2 more$/,
    ) as string,
  });
});

it('a whole ID is that snapshot, what none begins with is none', async () => {
  expect(await findSnapshotId(repository, ids[3] ?? '')).toBe(ids[3]);
  expect(await findSnapshotId(repository, 'abac')).toBeUndefined();
  expect(await findSnapshotId(repository, 'kabab'), "an object's").toBeUndefined();
});
