import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { BACKUP_STORAGE_LOCATIONS, BACKUPS } from '../../../src/kube/index.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';

describe('longshore backup-location check', () => {
  let cluster: TestCluster;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
  }, 60_000);
  afterEach(() => {
    fs.rmSync(inBucket('backups'), { recursive: true, force: true });
  });
  afterAll(() => cluster[Symbol.asyncDispose]());

  const inBucket = (path: string): string => join(cluster.cluster.storageDirectory, path);
  function put(key: string, text = 'x'): void {
    fs.mkdirSync(dirname(inBucket(key)), { recursive: true });
    fs.writeFileSync(inBucket(key), text);
  }

  const run = (...flags: string[]): Promise<Ran> => {
    const place = ['--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE];
    return runHere('backup-location', 'check', ...flags, ...place);
  };

  it('says that nothing is wrong', async () => {
    const { code, out } = await run();
    expect(out).toBe('location default: 0 backups, 0 restores, nothing is wrong\n');
    expect(code).toBe(0);
  });

  it('names what nobody will remove, and what is only good to know when asked', async () => {
    put('backups/left/left-logs.gz');
    const metadata = { name: 'other', namespace: NAMESPACE, uid: 'u' };
    put(
      'backups/other/velero-backup.json',
      JSON.stringify({
        apiVersion: 'velero.io/v1',
        kind: 'Backup',
        metadata,
        spec: {},
        status: { phase: 'Completed' },
      }),
    );
    put('backups/other/other.tar.gz');
    const { code, out } = await run();
    expect(code).toBe(3);
    expect(out).toMatch(
      /default +OrphanedFiles +left +files of a backup without its metadata: 1 file/,
    );
    expect(out).toContain(
      'location default: 1 backup, 0 restores, 1 problem; --all shows 1 more that are only good to know',
    );
    const all = await run('--all', '-o', 'json', 'default');
    expect(all.code).toBe(3);
    expect(JSON.parse(all.out)).toMatchObject([
      {
        location: 'default',
        findings: [{ kind: 'OrphanedFiles' }, { kind: 'BackupNotInCluster', name: 'other' }],
      },
    ]);
  });

  it('looks at the other locations where one cannot be read, and counts Backups by location', async () => {
    await cluster.client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { name: 'away', namespace: NAMESPACE },
      spec: {
        provider: 'aws',
        objectStorage: { bucket: 'nowhere' },
        config: { s3Url: 'http://127.0.0.1:1', region: 'x', s3ForcePathStyle: 'true' },
        credential: { name: 'missing', key: 'cloud' },
      },
    });
    await cluster.client.create(BACKUPS, {
      metadata: { name: 'elsewhere', namespace: NAMESPACE },
      spec: { storageLocation: 'away' },
      status: { phase: 'Completed' },
    });
    const { code, out } = await run();
    expect(code).toBe(1);
    expect(out).toMatch(/away +Unreadable +.*missing/);
    expect(out).toContain('location default: 0 backups, 0 restores, nothing is wrong');
    expect((await run('nope')).err).toContain('BackupStorageLocation.velero.io "nope" not found');
  });
});
