import { expect, it } from 'vitest';
import { loadRepositoryAccess } from '../../src/repository-access/index.ts';
import type { KubeClient } from '../../src/kube/index.ts';

it('credentials that have no place to lie are an error, not a wait without an end', async () => {
  const secret = { data: { cloud: Buffer.from('key').toString('base64') } };
  const location = {
    kind: 'BackupStorageLocation',
    metadata: { name: 'default', namespace: 'velero' },
    spec: {
      provider: 'aws',
      objectStorage: { bucket: 'backups' },
      credential: { name: 'cloud-credentials', key: 'cloud' },
    },
  };
  const client = {
    get: (_resource: unknown, { name }: { name: string }) =>
      Promise.resolve(name === 'default' ? location : secret),
  } as unknown as KubeClient;
  const access = loadRepositoryAccess({
    client,
    namespace: 'velero',
    volumeNamespace: 'app',
    storageLocation: 'default',
    isWriting: false,
    // Node's own recursive mkdir tries for ever here.
    directory: '/proc/x/y',
    defaultCredentials: () => undefined,
    signal: new AbortController().signal,
  });
  await expect(access).rejects.toMatchObject({ code: 'ENOENT', path: '/proc/x' });
});
