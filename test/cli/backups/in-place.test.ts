import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { findClaim } from '../../../src/cli/backups/in-place/restore-in-place.ts';
import { STAND_IN } from '../../../src/dev/index.ts';
import { BACKUPS, DATA_DOWNLOADS, DATA_UPLOADS, PODS } from '../../../src/kube/index.ts';
import { type Ran, runHere } from '../../support/command-line.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';

describe('longshore restore in-place', () => {
  let cluster: TestCluster;
  let path: string;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    await cluster.makeNamespace('shop');
    path = await cluster.makeVolume('shop', 'data');
    fs.writeFileSync(join(path, 'orders'), 'many');
    const snapshot = await cluster.makeSnapshot('shop', 'data');
    cluster.startAgent('node-1');
    await cluster.createUpload('moved', { namespace: 'shop', pvc: 'data', snapshot });
    await cluster.waitUpload('moved');
    const upload = await cluster.client.get(DATA_UPLOADS, { namespace: NAMESPACE, name: 'moved' });
    await makeBackup('nightly', 'Completed');
    const moved = { uploaderType: 'kopia', snapshotHandle: upload.status?.snapshotID, size: 4 };
    const claim = { pvcNamespace: 'shop', backupMethod: 'CSISnapshot' };
    put([
      {
        ...claim,
        pvcName: 'data',
        snapshotDataMoved: true,
        snapshotDataMovementInfo: moved,
      },
      { ...claim, pvcName: 'kept' },
    ]);
  }, 120_000);
  afterAll(() => cluster[Symbol.asyncDispose]());

  const makeBackup = (name: string, phase: string): Promise<unknown> =>
    cluster.client.create(BACKUPS, {
      metadata: { namespace: NAMESPACE, name },
      spec: { storageLocation: 'default' },
      status: { phase },
    });

  function put(infos: readonly object[], name = 'nightly', more: object = {}): void {
    const folder = join(cluster.cluster.storageDirectory, 'backups', name);
    fs.mkdirSync(folder, { recursive: true });
    const metadata = { name, namespace: NAMESPACE, uid: 'u' };
    const backup = { apiVersion: 'velero.io/v1', kind: 'Backup', metadata, spec: {} };
    const status = { phase: 'Completed', ...more };
    fs.writeFileSync(join(folder, 'velero-backup.json'), JSON.stringify({ ...backup, status }));
    fs.writeFileSync(join(folder, `${name}-volumeinfo.json.gz`), gzipSync(JSON.stringify(infos)));
    fs.writeFileSync(join(folder, `${name}.tar.gz`), gzipSync(''));
  }

  const run = (...words: string[]): Promise<Ran> =>
    runHere('restore', 'in-place', ...words, '--kubeconfig', cluster.kubeconfig, '-n', NAMESPACE);

  it('shows what differs, and then brings it back', async () => {
    fs.writeFileSync(join(path, 'orders'), 'none');
    fs.writeFileSync(join(path, 'new'), 'new');
    const dry = await run('nightly', 'shop/data', '--dry-run');
    expect([dry.code, dry.err]).toEqual([0, '']);
    expect(dry.out).toContain('\nchange /orders (4 B)\n');
    expect(dry.out).toContain('\nremove /new (3 B)\n');
    expect(dry.out).toMatch(/\nshop\/data: dry run: 4 B of 4 B would be written and 3 B would be/);
    expect(fs.readFileSync(join(path, 'orders'), 'utf8')).toBe('none');
    const refused = await run('nightly', 'shop/data', '--wait', '--max-write', '5');
    expect([refused.code, refused.err]).toEqual([
      1,
      expect.stringMatching(
        /the restore in place of shop\/data has ended as Failed: .*nothing was/,
      ),
    ]);
    const done = await run('nightly', 'shop/data', '--wait', '-o', 'json', '--max-write', '7');
    expect(JSON.parse(done.out)).toMatchObject({
      volume: 'shop/data',
      phase: 'Completed',
      report: { dryRun: false, changed: 1, removed: 1, bytesWritten: 4, bytesRemoved: 3 },
    });
    expect(fs.readdirSync(path)).toEqual(['orders']);
    expect(fs.readFileSync(join(path, 'orders'), 'utf8')).toBe('many');
  });

  it('does not ask for what cannot be done', async () => {
    await makeBackup('running', 'InProgress');
    await makeBackup('taken', 'Completed');
    put([], 'taken', { startTimestamp: '2026-11-26T09:50:00Z' });
    const errorOf = async (...words: string[]): Promise<string> => (await run(...words)).err;
    expect(await errorOf('running', 'shop/data')).toContain('backup running is InProgress');
    expect(await errorOf('none', 'shop/data')).toContain('there is no Backup velero/none');
    expect(await errorOf('taken', 'shop/data')).toContain('belong to another Backup of this name');
    expect(await errorOf('nightly', 'shop/other')).toContain('has no volume "shop/other"');
    expect(await errorOf('nightly', 'shop/kept')).toContain('its snapshot stays in the storage');
    expect(await errorOf('nightly', 'data')).toContain('"data" is not NAMESPACE/PVC');
    expect(await errorOf('nightly', 'shop/data', '--max-write', 'x')).toContain('--max-write "x"');
    expect(await errorOf('nightly', 'shop/data', '--max-write', '9PiB')).toContain('8 PiB'); // prettier-ignore
    const pod = { namespace: 'shop', name: 'web-0' };
    await cluster.client.create(PODS, {
      metadata: { ...pod, annotations: { [STAND_IN]: 'true' } },
      spec: {
        containers: [{ name: 'app', image: 'app' }],
        volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'data' } }],
      },
    });
    expect(await errorOf('nightly', 'shop/data')).toContain('pod shop/web-0 uses PVC shop/data');
    await cluster.client.delete(PODS, pod, { gracePeriodSeconds: 0 });
    const asked = await cluster.client.list(DATA_DOWNLOADS, { namespace: NAMESPACE });
    expect(asked).toHaveLength(3);
    // API servers with the definitions of Velero 1.19 take none without it.
    expect(asked.map(({ spec }) => spec.restoreType)).toEqual(['', '', '']);
    for (const { metadata } of asked) {
      // Kubernetes would delete it with its owner, in the middle of its writes.
      expect(metadata.ownerReferences).toBeUndefined();
      expect(metadata.labels).toMatchObject({ 'velero.io/backup-name': 'nightly' });
    }
  });
});

it('who may not read the PVC cannot ask for its restore, and is told so', async () => {
  const refused = new CodedError('KUBE_FORBIDDEN', 'user "u" cannot get persistentvolumeclaims');
  const session = {
    client: { find: () => Promise.reject(refused) } as never,
    signal: new AbortController().signal,
  };
  await expect(findClaim({ namespace: 'shop', name: 'data' }, session)).rejects.toMatchObject({
    code: 'KUBE_FORBIDDEN',
    message: expect.stringContaining('of PVC shop/data can be asked for only by who may') as string,
  });
});
