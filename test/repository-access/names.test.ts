import { afterAll, beforeAll, expect, it } from 'vitest';
import { BACKUP_REPOSITORIES } from '../../src/kube/index.ts';
import { ensureBackupRepository } from '../../src/repository-access/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';

let cluster: TestCluster;
beforeAll(async () => {
  cluster = await TestCluster.start({ nodes: [], keepsRepositories: false });
});
afterAll(() => cluster[Symbol.asyncDispose]());

it('two repositories whose names would be the same are made both', async () => {
  const { client } = cluster;
  const pairs = [
    ['team', 'a-b'],
    ['team-a', 'b'],
    ['long', 'l'.repeat(250)],
  ] as const;
  for (const [volumeNamespace, storageLocation] of pairs) {
    await ensureBackupRepository(
      {
        client,
        namespace: NAMESPACE,
        volumeNamespace,
        storageLocation,
        signal: new AbortController().signal,
      },
      // No controller makes repositories ready here.
      700,
    ).catch(() => undefined);
  }
  const found = await client.list(BACKUP_REPOSITORIES, { namespace: NAMESPACE });
  expect(found.every(({ metadata }) => metadata.name.length <= 253)).toBe(true);
  expect(
    found.map(({ spec }) => [spec.volumeNamespace, spec.backupStorageLocation]).sort(),
  ).toEqual([...pairs].sort());
});
