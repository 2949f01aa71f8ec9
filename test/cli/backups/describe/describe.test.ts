import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { DescribedRun } from '../../../../src/cli/backups/describe/describe-run.ts';
import {
  BACKUPS,
  DATA_UPLOADS,
  type KubeObject,
  RESTORES,
  SCHEDULES,
} from '../../../../src/kube/index.ts';
import { Api } from '../support/api.ts';

const RECORDED = new URL('../../../golden/velero/recorded/', import.meta.url).pathname;
const read = <T>(file: string): T => JSON.parse(fs.readFileSync(join(RECORDED, file), 'utf8')) as T;
const recorded = (file: string): KubeObject & { spec: object; status: object } => {
  const events = read<{ object: KubeObject & { spec: object; status: object } }[]>(file);
  const last = events.filter(({ object }) => !object.metadata.deletionTimestamp).at(-1);
  if (!last) throw new Error(`nothing in ${file}`);
  return last.object;
};

let api: Api;
beforeAll(async () => {
  api = await Api.start('describe');
  const backup = recorded('backups__velero__full1.json');
  await api.add(BACKUPS, 'full1', { spec: backup.spec, status: backup.status });
  const restore = recorded('restores__velero__rfull1.json');
  await api.add(RESTORES, 'rfull1', { spec: restore.spec, status: restore.status });
  storeBackup('full1', read('bucket-full1/full1-results.json'), backup.status);
  api.store('backups/full1/full1-volumeinfo.json.gz', read('bucket-full1/full1-volumeinfo.json'));
  const folder = 'restores/rfull1';
  const results = read('bucket-rfull1/restore-rfull1-results.json');
  api.store(`${folder}/restore-rfull1-results.gz`, results);
  api.store(`${folder}/rfull1-volumeinfo.json.gz`, read('bucket-rfull1/rfull1-volumeinfo.json'));
});
afterAll(() => api[Symbol.asyncDispose]());

function storeBackup(name: string, results: unknown, status: object): void {
  const backup = { apiVersion: 'velero.io/v1', kind: 'Backup', metadata: { name }, status };
  api.store(`backups/${name}/velero-backup.json`, backup);
  api.store(`backups/${name}/${name}-results.gz`, results);
}

const upload = (name: string, backup: KubeObject, status: object) =>
  api.add(DATA_UPLOADS, name, {
    labels: {
      'velero.io/backup-name': backup.metadata.name,
      'velero.io/backup-uid': backup.metadata.uid,
    },
    spec: {
      backupStorageLocation: 'default',
      sourceNamespace: 'app',
      sourcePVC: name,
      operationTimeout: '10m',
      snapshotType: 'CSI',
      datamover: 'velero',
    },
    status,
  });

describe('longshore backup describe', () => {
  it('tells of one that Velero has made, also what only the bucket knows', async () => {
    const { code, out, err } = await api.longshore('backup', 'describe', 'full1');
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatch(/^Backup: +full1\nNamespace: +velero\nPhase: +Completed\n/);
    expect(out).toMatch(/^Ended: .*, after 18.0 s$/m);
    expect(out).toMatch(/^Items: +16 of 16$/m);
    expect(out).toMatch(/^Volumes: +1 \(1 Completed\), 30.0 MiB$/m);
    expect(out).toMatch(/^Operations: +1 of 1 ended$/m);
    expect(out).toMatch(/^app\/data +CSISnapshot, moved +Completed +30.0 MiB$/m);
    expect(out).not.toContain('What to do');
    expect(out).not.toContain('includedNamespaces');
    const detailed = await api.longshore('backup', 'describe', 'full1', '--details');
    expect(detailed.out).toContain('  includedNamespaces: ["app"]\n');
    expect(detailed.out).not.toContain('Decided by');
  });

  it('tells with --details which rule or pod decided about a volume', async () => {
    const ended = { phase: 'Completed', completionTimestamp: '2026-11-24T10:01:00Z' };
    await api.add(BACKUPS, 'ruled', { spec: { storageLocation: 'default' }, status: ended });
    storeBackup('ruled', {}, ended);
    const decidedBy = 'rule 2 of ConfigMap velero/policies, line 7';
    api.store('backups/ruled/ruled-volumeinfo.json.gz', [
      { pvcNamespace: 'app', pvcName: 'data', pvName: 'pv', skipped: true, decidedBy },
      { pvcNamespace: 'app', pvcName: 'logs', pvName: 'pv2', backupMethod: 'CSISnapshot' },
    ]);
    const text = 'app/data: decided by rule 2 of ConfigMap velero/policies, line 7';
    const { out } = await api.longshore('backup', 'describe', 'ruled', '--details');
    expect(out).toContain(`Decided by rules and pods:\n  ${text}\n`);
    expect(out).not.toContain('app/logs: decided');
    const brief = await api.longshore('backup', 'describe', 'ruled');
    expect(brief.out).not.toContain('decided by');
  });

  it('tells what rules left out of volumes, also what only the bucket knows', async () => {
    const ended = { phase: 'Completed', completionTimestamp: '2026-11-24T10:01:00Z' };
    await api.add(BACKUPS, 'excluding', { spec: { storageLocation: 'default' }, status: ended });
    storeBackup('excluding', {}, ended);
    const note = 'left out by rules: "/.snapshot", "*.log"';
    const pvbInfo = { podNamespace: 'app', podName: 'web', volumeName: 'data', Phase: 'Completed' };
    api.store('backups/excluding/excluding-volumeinfo.json.gz', [
      { pvcName: 'data', backupMethod: 'PodVolumeBackup', result: 'succeeded', pvbInfo, note },
    ]);
    const { out } = await api.longshore('backup', 'describe', 'excluding', '--details');
    expect(out).toContain(`Notes on volumes:\n  app/web/data: ${note}\n`);
    const brief = await api.longshore('backup', 'describe', 'excluding');
    expect(brief.out).toContain(note);
  });

  it('tells of one that is being made: how far each volume is, and what it waits for', async () => {
    const backup = await api.add(BACKUPS, 'running', {
      spec: { storageLocation: 'default' },
      status: {
        phase: 'WaitingForPluginOperations',
        startTimestamp: '2026-01-01T00:00:00Z',
        backupItemOperationsAttempted: 2,
        errors: 1,
      },
    });
    await upload('waits', backup, {});
    await upload('moves', backup, {
      phase: 'InProgress',
      node: 'n-1',
      startTimestamp: new Date(Date.now() - 10_000).toISOString(),
      progress: { bytesDone: 1 << 20, totalBytes: 4 << 20 },
    });
    const { out } = await api.longshore('backup', 'describe', 'running');
    expect(out).toMatch(/^Operations: +0 of 2 ended$/m);
    expect(out).toMatch(
      /^app\/moves +DataUpload +InProgress +n-1 +1.0 MiB of 4.0 MiB \(25%\) +\d/m,
    );
    expect(out).toMatch(
      /^app\/waits +DataUpload +New .*waits for a node-agent: there is no node-agent/m,
    );
    expect(out).toContain('look after what its volumes wait for: app/waits waits for a node-agent');
    expect(out).toContain('Errors and warnings are stored when it has ended.');
    const { out: json } = await api.longshore('backup', 'describe', 'running', '-o', 'json');
    const described = JSON.parse(json) as DescribedRun;
    expect(described).toMatchObject({ name: 'running', isOver: false, errorCount: 1 });
    expect(described.volumes.find(({ volume }) => volume === 'app/moves')).toMatchObject({
      bytesDone: 1 << 20,
      totalBytes: 4 << 20,
      bytesPerSecond: expect.any(Number) as number,
    });
  });

  it('tells why one has failed, and what to do: ten of each without --details', async () => {
    const status = { phase: 'PartiallyFailed', errors: 31, warnings: 1 };
    const spec = { storageLocation: 'default' };
    const backup = await api.add(BACKUPS, 'half', { spec, status });
    const why = `data path backup failed: ${'no space left '.repeat(20)}`;
    await upload('bad', backup, { phase: 'Failed', message: why });
    storeBackup(
      'half',
      {
        errors: {
          velero: ['first'],
          namespaces: { b: ['b fails'], a: Array.from({ length: 29 }, (_, i) => `a fails ${i}`) },
        },
        warnings: { cluster: ['a\u001b[31mwarning\u202e'] },
      },
      status,
    );
    const { out, code } = await api.longshore('backup', 'describe', 'half');
    expect(code).toBe(0);
    expect(out).toContain(`Failed volumes:\n  app/bad: ${why.trimEnd()}`);
    expect(out).toContain('Errors:\n  first\n  namespace a: a fails 0\n');
    expect(out).toContain('  ... and 21 entries more; --details shows all\n');
    expect(out).toContain('Warnings:\n  cluster: a\\x1b[31mwarning\\u202e\n');
    expect(out).toContain('volumes that failed: 1; "longshore backup logs half"');
    const detailed = await api.longshore('backup', 'describe', 'half', '--details');
    expect(detailed.out).toContain('  namespace b: b fails\n');
    expect(detailed.out).not.toContain('--details shows all');
  });

  it('of a bucket that cannot be read says so, and shows the rest', async () => {
    const status = { phase: 'Failed', failureReason: 'out of\u0007luck' };
    await api.add(BACKUPS, 'lost', { spec: { storageLocation: 'nowhere' }, status });
    await api.add(BACKUPS, 'empty', { spec: { storageLocation: 'default' }, status });
    const { out, code } = await api.longshore('backup', 'describe', 'lost', 'empty');
    expect(code).toBe(0);
    const [lost, empty] = out.split('\nBackup:');
    expect(lost).toContain('Why:\n  out of\\x07luck\n');
    expect(lost).toContain(
      'cannot be read from the bucket: BackupStorageLocation.velero.io "nowhere" not found',
    );
    expect(empty).toContain('cannot be read from the bucket: the bucket has no files of it');
    expect(empty).toContain('nothing can be restored from it; make another one');
    const { out: json } = await api.longshore('backup', 'describe', 'empty', '-o', 'json');
    expect(JSON.parse(json)).toMatchObject({ notRead: 'the bucket has no files of it' });
  });

  it('tells of one that no server takes up', async () => {
    const metadata = { namespace: 'velero', name: 'fresh' };
    await api.client.create(BACKUPS, { metadata, spec: {} });
    const { out } = await api.longshore('backup', 'describe', 'fresh');
    expect(out).toMatch(/^Phase: +New$/m);
    // Servers need some seconds.
    expect(out).not.toContain('What to do');
  });

  it('fails for names that are not there, after the others', async () => {
    const { out, err, code } = await api.longshore('backup', 'describe', 'nope', 'full1');
    expect(out).toContain('full1');
    expect(err).toContain('there is no Backup velero/nope');
    expect(code).toBe(1);
  });
});

it('a restore is described with its backup, and the warnings of its bucket', async () => {
  const { out, err } = await api.longshore('restore', 'describe', 'rfull1');
  expect(err).toBe('');
  expect(out).toMatch(/^Backup: +full1$/m);
  expect(out).toContain(
    'Warnings:\n  namespace app2: could not restore, ConfigMap:kube-root-ca.crt already exists.',
  );
  expect(out).toMatch(/^app2\/data +CSISnapshot, moved/m);
});

it('an empty log is told apart from one that could not be shown', async () => {
  await api.add(BACKUPS, 'silent', {
    spec: { storageLocation: 'default' },
    status: { phase: 'Completed' },
  });
  fs.mkdirSync(join(api.bucket, 'backups/silent'), { recursive: true });
  fs.writeFileSync(join(api.bucket, 'backups/silent/silent-logs.gz'), gzipSync(''));
  const { code, out, err } = await api.longshore('backup', 'logs', 'silent');
  expect({ code, out }).toEqual({ code: 0, out: '' });
  expect(err).toContain('the log of Backup silent is there, and empty');
});

it('logs of what never began are not looked for', async () => {
  await api.add(RESTORES, 'refused', { status: { phase: 'FailedValidation' } });
  await api.add(RESTORES, 'new', { spec: { scheduleName: 'nightly' } });
  expect(await api.longshore('restore', 'logs', 'refused')).toMatchObject({
    code: 1,
    err: 'longshore: there is no log of restore refused: it was refused before it began; "longshore restore describe refused" says why\n',
  });
  expect(await api.longshore('restore', 'logs', 'new')).toMatchObject({
    code: 1,
    err: 'longshore: there is no log of restore new: it has not begun, and no backup is chosen for it yet\n',
  });
});

it('a schedule is described with its newest backups', async () => {
  await api.add(SCHEDULES, 'nightly', {
    spec: {
      template: { ttl: '720h0m0s', labelSelector: { matchLabels: { app: 'web' } } },
      schedule: '0 2 * * *',
      paused: true,
    },
    status: { phase: 'FailedValidation', validationErrors: ['no\u0007good'] },
  });
  for (const day of ['1', '2']) {
    const labels = { 'velero.io/schedule-name': 'nightly' };
    await api.add(BACKUPS, `nightly-${day}`, { labels, status: { phase: 'Completed' } });
  }
  const { out } = await api.longshore('schedule', 'describe', 'nightly');
  expect(out).toMatch(/^Paused: +yes; "longshore schedule unpause nightly" ends that$/m);
  expect(out).toMatch(/^When: +0 2 \* \* \* \(in the server's time zone, UTC by default\)$/m);
  await api.client.patch(
    SCHEDULES,
    { namespace: 'velero', name: 'nightly' },
    {
      spec: { schedule: 'CRON_TZ=Europe/Berlin 0 2 * * *' },
    },
  );
  const { out: zoned } = await api.longshore('schedule', 'describe', 'nightly');
  expect(zoned).toMatch(/^When: +CRON_TZ=Europe\/Berlin 0 2 \* \* \*$/m);
  expect(out).toContain('Template:\n  ttl: 720h0m0s\n  labelSelector: app=web\n');
  expect(out).toContain('Why:\n  no\\x07good\n');
  expect(out).toMatch(/Newest backups:\n {2}nightly-\d {2}Completed/);
  const { out: json } = await api.longshore('schedule', 'describe', 'nightly', '-o', 'json');
  expect(JSON.parse(json)).toMatchObject({ kind: 'Schedule', paused: true });
});
