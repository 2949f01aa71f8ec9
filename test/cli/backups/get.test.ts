import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { BACKUPS, DATA_UPLOADS, RESTORES, SCHEDULES } from '../../../src/kube/index.ts';
import { byPrefixAndTime } from '../../../src/cli/backups/columns.ts';
import { runHere } from '../../support/command-line.ts';
import { Api } from './support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('get');
  await api.add(BACKUPS, 'web', {
    labels: { env: 'prod' },
    spec: { storageLocation: 'default', labelSelector: { matchLabels: { app: 'web' } } },
    status: {
      phase: 'PartiallyFailed',
      errors: 1200,
      warnings: 2,
      startTimestamp: '2026-11-26T02:00:00Z',
      expiration: '2020-01-01T00:00:00Z',
      progress: { totalItems: 1500, itemsBackedUp: 20 },
    },
  });
  await api.add(BACKUPS, 'queued', { status: { phase: 'Queued', queuePosition: 3 } });
  await api.add(BACKUPS, 'nightly-20261125020000', {});
  await api.add(BACKUPS, 'nightly-20261126020000', {});
  await api.add(RESTORES, 'back', {
    spec: { backupName: 'web' },
    status: { phase: 'Completed', completionTimestamp: '2026-11-26T03:00:00Z' },
  });
  await api.add(SCHEDULES, 'nightly', {
    spec: { template: { ttl: '720h0m0s' }, schedule: '0 2 * * *', paused: true },
    status: { phase: 'Enabled', lastBackup: '2020-11-26T02:00:00Z' },
  });
});
afterAll(() => api[Symbol.asyncDispose]());

const rowsOf = (out: string): string[][] =>
  out
    .trimEnd()
    .split('\n')
    .map((line) => line.split(/ {2,}/));

describe('longshore backup get', () => {
  it('has a row for each, those of one schedule newest first', async () => {
    const { code, out, err } = await api.longshore('backup', 'get');
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const [header, ...rows] = rowsOf(out);
    expect(header).toEqual([
      ...['NAME', 'STATUS', 'ERRORS', 'WARNINGS', 'CREATED', 'EXPIRES', 'STORAGE LOCATION'],
      ...['QUEUE POSITION', 'SELECTOR', 'ITEMS'],
    ]);
    expect(rows.map(([name]) => name)).toEqual([
      ...['nightly-20261126020000', 'nightly-20261125020000', 'queued', 'web'],
    ]);
    expect(rows[2]?.slice(0, 6)).toEqual(['queued', 'Queued', '0', '0', 'n/a', '3']);
    expect(out).toMatch(
      /^web +PartiallyFailed +1,200 +2 +2026-11-26 0\d:00:00 \S+ +\d+d ago +default +app=web +20\/1,500$/m,
    );
  });

  it('of names has those, in their order, and fails for one that is not there', async () => {
    const { code, out, err } = await api.longshore('backup', 'get', 'web', 'x', 'queued', 'y');
    expect(rowsOf(out).map(([name]) => name)).toEqual(['NAME', 'web', 'queued']);
    expect(err).toContain('there is no Backup velero/x; "longshore backup get" lists those');
    expect(err).toContain('there is no Backup velero/y');
    expect(code).toBe(1);
  });

  it('of labels has those that they select', async () => {
    const { out } = await api.longshore('backup', 'get', '-l', 'env in (prod)', '-o', 'name');
    expect(out).toBe('backup.velero.io/web\n');
    const nothing = await api.longshore('backup', 'get', '-l', 'env=none');
    expect(nothing).toMatchObject({
      code: 0,
      out: '',
      err: 'there is no backup with these labels in namespace velero\n',
    });
  });

  it('prints documents: one alone, or a list', async () => {
    const one = JSON.parse(
      (await api.longshore('backup', 'get', 'web', '-o', 'json')).out,
    ) as object;
    expect(one).toMatchObject({ kind: 'Backup', metadata: { name: 'web' } });
    // As people read them, and as kubectl prints them.
    expect(Object.keys(one).slice(0, 2)).toEqual(['apiVersion', 'kind']);
    const list = parse((await api.longshore('backup', 'get', '-o', 'yaml')).out) as {
      kind: string;
      items: { kind: string }[];
    };
    expect(list).toMatchObject({ apiVersion: 'velero.io/v1', kind: 'BackupList' });
    expect(list.items.map(({ kind }) => kind)).toEqual(Array(4).fill('Backup'));
    expect(Object.keys(list.items[0] ?? {})[0]).toBe('apiVersion');
    const none = await api.longshore('backup', 'get', '-l', 'env=none', '-o', 'json');
    expect(JSON.parse(none.out)).toMatchObject({ kind: 'BackupList', items: [] });
  });

  it('in full has the volumes and bytes that were moved', async () => {
    for (const [name, bytesDone] of Object.entries({ u1: 1 << 20, u2: 3 << 20 })) {
      await api.add(DATA_UPLOADS, name, {
        labels: { 'velero.io/backup-name': 'web' },
        spec: {
          backupStorageLocation: 'default',
          sourceNamespace: 'app',
          sourcePVC: name,
          operationTimeout: '10m',
          snapshotType: 'CSI',
          datamover: 'velero',
        },
        status: { phase: 'Completed', progress: { bytesDone, totalBytes: bytesDone } },
      });
    }
    const { out } = await api.longshore('backup', 'get', 'web', '-o', 'wide');
    const [header, row] = rowsOf(out);
    expect(header?.slice(-2)).toEqual(['VOLUMES', 'VOLUME BYTES']);
    expect(row?.slice(-2)).toEqual(['2', '4.0 MiB']);
  });

  it('of more than a page has all', async () => {
    const names = Array.from({ length: 1200 }, (_, i) => `many-${String(i).padStart(4, '0')}`);
    for (const name of names) await api.add(BACKUPS, name, { labels: { many: 'yes' } });
    const { out } = await api.longshore('backup', 'get', '-l', 'many', '-o', 'name');
    expect(out.trimEnd().split('\n')).toEqual(names.map((name) => `backup.velero.io/${name}`));
  }, 60_000);
});

it('restores and schedules have their columns', async () => {
  const restores = rowsOf((await api.longshore('restore', 'get')).out);
  expect(restores[0]?.slice(0, 4)).toEqual(['NAME', 'BACKUP', 'STATUS', 'STARTED']);
  expect(restores[1]?.slice(0, 3)).toEqual(['back', 'web', 'Completed']);
  const { out } = await api.longshore('schedule', 'get');
  expect(out).toMatch(/^nightly +Enabled +.* 0 2 \* \* \* +720h0m0s +\d+d ago +<none> +true$/m);
});

it('where there is none at all it says how to make one', async () => {
  const cluster = ['--kubeconfig', api.kubeconfig, '--namespace', 'default'];
  for (const word of ['backup', 'restore', 'schedule']) {
    expect(await runHere(word, 'get', ...cluster)).toMatchObject({
      code: 0,
      out: '',
      err: `there is no ${word} in namespace default; "longshore ${word} create --help" says how to make one\n`,
    });
  }
});

it('a kubeconfig that is not there is a sentence', async () => {
  const away = await runHere('backup', 'get', '--kubeconfig', '/nowhere/kubeconfig');
  expect(away.code).toBe(1);
  expect(away.err).toMatch(/^longshore: .*\/nowhere\/kubeconfig/);
});

it('sorts as Velero does', () => {
  const sorted = (...names: string[]): string[] =>
    names
      .map((name) => ({ name, cells: [] }))
      .sort(byPrefixAndTime)
      .map(({ name }) => name);
  expect(sorted('b-20260101000000', 'b-20260102000000', 'a', 'c-20260101000000', 'b')).toEqual([
    ...['a', 'b', 'b-20260102000000', 'b-20260101000000', 'c-20260101000000'],
  ]);
});
