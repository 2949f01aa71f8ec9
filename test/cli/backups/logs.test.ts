import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import type { MoverLogStore } from '../../../src/agent/index.ts';
import { BackupArchive } from '../../../src/archive/index.ts';
import { openBucket } from '../../../src/blob/index.ts';
import { moverLogStore } from '../../../src/cli/node-agent/mover-log-store.ts';
import type { RunningAgent } from '../../../src/cli/demo/dev-environment.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  RESTORES,
} from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { sharedPackage } from '../../support/package.ts';

const run = promisify(execFile);
const SIZE = 60 << 20;

describe('longshore backup logs', () => {
  let cluster: TestCluster;
  let agent: RunningAgent;
  let hangs = false;
  const directory = tempDirectory('logs');

  beforeAll(async () => {
    cluster = await TestCluster.start({
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '30MiB' },
    });
    const { client } = cluster;
    const real = moverLogStore({
      client,
      logger: silentLogger,
      namespace: NAMESPACE,
      directory,
    });
    const moverLogStoreOf: MoverLogStore = {
      open: (name, signal) =>
        hangs
          ? new Promise((_resolve, reject) => {
              signal.addEventListener('abort', () => reject(signal.reason as Error));
            })
          : real.open(name, signal),
    };
    agent = cluster.startAgent('node-1', {
      restartsMax: 1,
      stallTimeoutMs: 5000,
      moverLogStore: moverLogStoreOf,
    });
    await cluster.makeNamespace('app');
    for (const name of ['backup', 'bare', 'waits']) {
      await client.create(BACKUPS, {
        metadata: { namespace: NAMESPACE, name },
        spec: name === 'waits' ? {} : { storageLocation: 'default' },
        status: { phase: 'InProgress' },
      });
    }
    await client.create(RESTORES, {
      metadata: { namespace: NAMESPACE, name: 'back' },
      spec: { backupName: 'backup' },
    });
  });
  afterAll(async () => {
    await agent.stop();
    await cluster[Symbol.asyncDispose]();
  });

  const longshore = (...parameters: string[]) =>
    run(join(sharedPackage(), 'bin/longshore'), [
      ...parameters,
      ...['--kubeconfig', cluster.kubeconfig, '--namespace', NAMESPACE],
    ]);

  async function newUpload(name: string, bytes: number, spec: object = {}): Promise<void> {
    const source = await cluster.makeVolume('app', name);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
    const snapshot = await cluster.makeSnapshot('app', name);
    await cluster.createUpload(name, { namespace: 'app', pvc: name, snapshot, ...spec });
  }

  async function waitFor(isSo: () => boolean): Promise<void> {
    for (let i = 0; i < 2000 && !isSo(); i++) await sleep(20);
    expect(isSo()).toBe(true);
  }
  /** How many of its data movers have begun. */
  const begun = (name: string): number =>
    (cluster.cluster.podLog(name) ?? '').split('data upload is in progress').length - 1;

  const inBucket = (path: string): string => join(cluster.cluster.storageDirectory, path);
  async function waitFile(path: string): Promise<void> {
    await waitFor(() => fs.existsSync(inBucket(path)));
  }

  it('prints the log of the backup, then those of movers that ended well, failed or were killed', async () => {
    await newUpload('well', 1000);
    await newUpload('wrong', 1000, { dataMoverConfig: { ParallelFilesUpload: 'many' } });
    await newUpload('killed', SIZE);
    await cluster.waitUpload('killed', 'InProgress');
    const runner = cluster.cluster.runners.get('node-1');
    // The pods of one name have one file here.
    for (let times = 1; times <= 2; times++) {
      await waitFor(() => begun('killed') === times);
      runner?.processOf('killed')?.kill('SIGKILL');
    }
    const { status } = await cluster.waitUpload('killed');
    expect(status?.message).toContain('the data mover died 2 times');
    expect((await cluster.waitUpload('wrong')).status?.phase).toBe('Failed');
    expect((await cluster.waitUpload('well')).status?.phase).toBe('Completed');
    const folder = 'backups/backup/longshore-logs';
    for (const name of ['killed', 'well', 'wrong']) await waitFile(`${folder}/app.${name}.gz`);
    fs.writeFileSync(
      inBucket('backups/backup/backup-logs.gz'),
      gzipSync('level=info msg="one\u001b[31m"\nlevel=info msg="two"'),
    );
    const { stdout } = await longshore('backup', 'logs', 'backup');
    expect(stdout).toMatch(
      /^level=info msg="one\\x1b\[31m"\nlevel=info msg="two"\n\*{8} data movers/,
    );
    const parts = stdout.split(/^\*{8} data movers of PVC app\/(.*) \*{8}$/m);
    expect(parts.filter((_, at) => at % 2 === 1)).toEqual(['killed', 'well', 'wrong']);
    const [, , killed = '', , well = '', , wrong = ''] = parts;
    expect(killed.match(/^======== DataUpload killed on node node-1, ended at /gm)).toHaveLength(2);
    expect(killed).toContain('data upload is in progress');
    expect(well).toContain('data upload completed');
    expect(wrong).toContain('ParallelFilesUpload is \\"many\\", not a whole number');
  });

  it('keeps that of a mover that hangs, and is ended for it', async () => {
    await newUpload('stuck', SIZE);
    await cluster.waitUpload('stuck', 'InProgress');
    const process = cluster.cluster.runners.get('node-1')?.processOf('stuck');
    await waitFor(() => begun('stuck') === 1);
    process?.kill('SIGSTOP');
    const { status } = await cluster.waitUpload('stuck');
    expect(status?.message).toMatch(/^no progress for /);
    await waitFile('backups/backup/longshore-logs/app.stuck.gz');
    const { stdout } = await longshore('backup', 'logs', 'backup');
    expect(stdout).toMatch(
      /app\/stuck \*+\n=+ DataUpload stuck on .*\n.*data upload is in progress/s,
    );
    fs.rmSync(inBucket('backups/backup/longshore-logs/app.stuck.gz'));
  });

  it('prints that of a restore, whose data mover has failed', async () => {
    await cluster.makeTarget('app', 'back');
    const labels = { 'velero.io/restore-name': 'back' };
    await cluster.client.create(DATA_DOWNLOADS, {
      metadata: { name: 'back', namespace: NAMESPACE, labels },
      spec: {
        targetVolume: { namespace: 'app', pvc: 'back', pv: '' },
        snapshotID: '0'.repeat(32),
        sourceNamespace: 'app',
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
      },
    });
    expect((await cluster.waitDownload('back')).status?.phase).toBe('Failed');
    await waitFile('restores/back/longshore-logs/app.back.gz');
    const { stdout } = await longshore('restore', 'logs', 'back');
    expect(stdout).toMatch(/^\*{8} data movers of PVC app\/back \*{8}\n=+ DataDownload back on /);
    expect(stdout).toContain('the data mover failed');
  });

  it('a bucket that hangs, or a location that is read-only, leaves the CR as it is', async () => {
    hangs = true;
    try {
      await newUpload('beside', 1000);
      const { status } = await cluster.waitUpload('beside', undefined, 20_000);
      expect(status?.phase).toBe('Completed');
    } finally {
      hangs = false;
    }
    const ref = { namespace: NAMESPACE, name: 'default' };
    await cluster.client.patch(BACKUP_STORAGE_LOCATIONS, ref, { spec: { accessMode: 'ReadOnly' } });
    await newUpload('read-only', 1000);
    await cluster.waitUpload('read-only');
    await sleep(1000);
    await cluster.client.patch(BACKUP_STORAGE_LOCATIONS, ref, { spec: { accessMode: null } });
    const logs = fs.readdirSync(inBucket('backups/backup/longshore-logs'));
    expect(logs.sort()).toEqual(['app.killed.gz', 'app.well.gz', 'app.wrong.gz']);
  });

  it('a backup that is deleted takes them along, and none is written for it after', async () => {
    await cluster.client.delete(BACKUPS, { namespace: NAMESPACE, name: 'backup' });
    await using bucket = await openBucket(`file://${cluster.cluster.storageDirectory}/`);
    expect((await Array.fromAsync(bucket.list('backups/backup/'))).length).toBeGreaterThan(3);
    await new BackupArchive(bucket).delete('backup');
    expect(await Array.fromAsync(bucket.list('backups/'))).toEqual([]);
    await newUpload('late', 1000);
    await cluster.waitUpload('late');
    await sleep(1000);
    expect(await Array.fromAsync(bucket.list('backups/'))).toEqual([]);
    const { metadata } = await cluster.client.get(DATA_UPLOADS, {
      namespace: NAMESPACE,
      name: 'late',
    });
    expect(metadata.labels?.['velero.io/backup-name']).toBe('backup');
  });

  it.each([
    ['bare', 'there is no log of backup bare in location default, neither its own nor one'],
    ['waits', 'the backup has not begun: it has no storage location yet'],
    ['none', 'there is no Backup velero/none'],
  ])('fails for %s with a sentence', async (name, text) => {
    await expect(longshore('backup', 'logs', name)).rejects.toMatchObject({
      stdout: '',
      stderr: expect.stringContaining(text) as string,
    });
  });
});
