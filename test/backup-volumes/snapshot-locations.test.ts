import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { loadSnapshotLocations } from '../../src/backup-volumes/index.ts';
import type { KubeClient, KubeObject } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';

const directory = tempDirectory('snapshot-locations');
const { signal } = new AbortController();
afterAll(() => {
  fs.rmSync(directory, { recursive: true, force: true });
});

const location = (name: string, spec: object): KubeObject =>
  ({ metadata: { name }, spec }) as never;

function clientOf(locations: readonly KubeObject[], cloud = 'secret text') {
  const asked: string[] = [];
  const client = {
    list: () => {
      asked.push('list');
      return Promise.resolve(locations);
    },
    get: (_: unknown, { namespace, name }: { namespace: string; name: string }) => {
      asked.push(`get ${namespace}/${name}`);
      const data = { cloud: Buffer.from(cloud).toString('base64') };
      return Promise.resolve({ metadata: { namespace, name }, data });
    },
  } as unknown as KubeClient;
  return { client, asked };
}

const load = (client: KubeClient, ...names: string[]) =>
  loadSnapshotLocations(names, { client, namespace: 'velero', directory, signal });

describe('the snapshot locations of a backup', () => {
  it('are those that it names, in its order, with the credentials of their Secrets in a file', async () => {
    const credential = { name: 'aws', key: 'cloud' };
    const config = { region: 'r' };
    const all = [
      location('a', { provider: 'p', config, credential }),
      location('b', { provider: 'q' }),
      location('c', { provider: 'r' }),
    ];
    const [b, a] = await load(clientOf(all).client, 'b', 'a');
    expect(b).toEqual(all[1]);
    expect(a?.spec?.config).toEqual({ region: 'r', credentialsFile: join(directory, 'aws_cloud') });
    const file = a?.spec?.config?.credentialsFile ?? '';
    expect(fs.readFileSync(file, 'utf8')).toBe('secret text');
    expect(fs.statSync(file).mode & 0o777).toBe(0o600);
    // The next backup reads the Secret again. A running plugin finds the new contents at the same
    // path.
    await load(clientOf(all, 'newer').client, 'a');
    expect(fs.readFileSync(file, 'utf8')).toBe('newer');
  });
  it('are not asked for where the backup names none', async () => {
    const { client, asked } = clientOf([]);
    expect(await load(client)).toEqual([]);
    expect(asked).toEqual([]);
  });
  it('say which one has credentials that are not there', async () => {
    const { client } = clientOf([location('a', { credential: { name: 'aws', key: 'other' } })]);
    await expect(load(client, 'a')).rejects.toMatchObject({
      code: 'NO_PASSWORD',
      message:
        'error adding credentials to volume snapshot location named a: unable to get credentials: Secret velero/aws has no key "other"',
    });
  });
});
