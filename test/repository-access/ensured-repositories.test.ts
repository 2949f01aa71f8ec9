import { expect, it } from 'vitest';
import type { KubeClient } from '../../src/kube/index.ts';
import { EnsuredRepositories } from '../../src/repository-access/index.ts';

it('a repository that was waited for in vain is only looked at for the next pods', async () => {
  let phase = 'New';
  let looks = 0;
  const list = () => {
    looks++;
    return Promise.resolve([{ metadata: { name: 'app-default-kopia' }, status: { phase } }]);
  };
  const query = {
    client: { list } as unknown as KubeClient,
    namespace: 'velero',
    storageLocation: 'default',
    signal: new AbortController().signal,
  };
  const repositories = new EnsuredRepositories(query, 700);
  const looksOf = async (namespace: string): Promise<number> => {
    looks = 0;
    const refusal = { code: 'REPOSITORY_NOT_READY' };
    await expect(repositories.ensure(namespace)).rejects.toMatchObject(refusal);
    return looks;
  };
  expect(await looksOf('app')).toBeGreaterThan(1);
  expect(await looksOf('app')).toBe(1);
  // A repository of a different namespace.
  expect(await looksOf('other')).toBeGreaterThan(1);
  phase = 'Ready';
  await repositories.ensure('app');
});
