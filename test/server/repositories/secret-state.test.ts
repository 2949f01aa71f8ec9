import { expect, it } from 'vitest';
import { signingKey } from '../../../src/archive/index.ts';
import { Secret } from '../../../src/base/index.ts';
import type { KubeClient } from '../../../src/kube/index.ts';
import { EARLIER_SIGNING_KEYS, repositoryPasswords } from '../../../src/repository-access/index.ts';
import {
  loadPasswordState,
  writePasswordState,
} from '../../../src/server/repositories/password-change/secret-state.ts';

const { signal } = new AbortController();

/** A cluster with one Secret. */
function clusterWith(password: string): KubeClient & { data: Record<string, string> } {
  const cluster = {
    data: { 'repository-password': Buffer.from(password).toString('base64') },
    find: () => Promise.resolve({ metadata: { name: 's' }, data: cluster.data }),
    replace: (_resource: unknown, { data }: { data: Record<string, string> }) => {
      cluster.data = data as typeof cluster.data;
      return Promise.resolve();
    },
  };
  return cluster as never;
}

async function changeTo(password: string, cluster: KubeClient): Promise<void> {
  const state = await loadPasswordState(cluster, 'velero', signal);
  const next = { current: new Secret(password), next: undefined, previous: state.current };
  await writePasswordState(cluster, state, next, signal);
}

it('keys that signed backups stay in the Secret when its password changes', async () => {
  const cluster = clusterWith('first');
  for (const password of ['second', 'third', 'third']) await changeTo(password, cluster);
  const found = await repositoryPasswords({ client: cluster, namespace: 'velero', signal });
  const keys = await Promise.all(['first', 'second'].map(signingKey));
  expect(found?.earlierKeys).toEqual(keys.map((key) => key.toString('hex')));
  expect(found?.current).toBe('third');
});

it('the key of the password that everybody knows is not kept', async () => {
  const cluster = clusterWith('static-passw0rd');
  await changeTo('second', cluster);
  expect(cluster.data).not.toHaveProperty(EARLIER_SIGNING_KEYS);
});
