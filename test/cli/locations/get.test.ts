import { afterAll, beforeAll, expect, it } from 'vitest';
import { BACKUP_STORAGE_LOCATIONS } from '../../../src/kube/index.ts';
import { runHere } from '../../support/command-line.ts';
import { Api } from '../backups/support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('locations');
  await api.add(BACKUP_STORAGE_LOCATIONS, 'far', {
    spec: { provider: 'aws', objectStorage: { bucket: 'b', prefix: 'p' }, accessMode: 'ReadOnly' },
    status: {
      phase: 'Unavailable',
      message: 'no route\u0007 to host',
      lastValidationTime: '2026-11-26T09:00:00Z',
    },
  });
  await api.add(BACKUP_STORAGE_LOCATIONS, 'main', {
    spec: { provider: 'aws', objectStorage: { bucket: 'm' }, default: true },
    status: { phase: 'Available', lastValidationTime: '2026-11-26T10:00:00Z' },
  });
});
afterAll(() => api[Symbol.asyncDispose]());
const get = (...words: string[]) => api.longshore('backup-location', 'get', ...words);

it('locations are listed with Velero’s columns, and those that cannot be used with why', async () => {
  const { code, out, err } = await get();
  expect(code).toBe(0);
  expect(
    out
      .trimEnd()
      .split('\n')
      .map((line) => line.trimEnd().split(/ {2,}/)),
  ).toEqual([
    ['NAME', 'PROVIDER', 'BUCKET/PREFIX', 'PHASE', 'LAST VALIDATED', 'ACCESS MODE', 'DEFAULT'],
    ['default', 'velero.io/fs', 'default', 'Unknown', 'never', 'ReadWrite'],
    ['far', 'aws', 'b/p', 'Unavailable', expect.stringContaining('2026-11-26'), 'ReadOnly'],
    ['main', 'aws', 'm', 'Available', expect.stringContaining('2026-11-26'), 'ReadWrite', 'true'],
  ]);
  expect(err.trimEnd().split('\n')).toEqual([
    expect.stringMatching(/^location default was not validated yet: does a server run/),
    'location far is Unavailable: no route\\x07 to host; "longshore backup-location check far" looks into it',
  ]);
});

it('those that are named are shown, and the exit code says that one is not there', async () => {
  expect(await get('main', 'nope', '-o', 'name')).toEqual({
    code: 1,
    out: 'backupstoragelocation.velero.io/main\n',
    err: 'longshore: there is no BackupStorageLocation velero/nope; "longshore backup-location get" lists those that there are\n',
  });
  const { out } = await get('main', '-o', 'json');
  expect(JSON.parse(out)).toMatchObject({ kind: 'BackupStorageLocation', spec: { default: true } });
  const all = JSON.parse((await get('-o', 'json')).out) as { kind: string; items: object[] };
  expect([all.kind, all.items.length]).toEqual(['BackupStorageLocationList', 3]);
});

it('where there is none it says how to make one', async () => {
  const cluster = ['--kubeconfig', api.kubeconfig, '-n', 'default'];
  expect(await runHere('get', 'backup-locations', ...cluster)).toEqual({
    code: 0,
    out: '',
    err: 'there is no backup location in namespace default; "longshore install" makes one, and so does "velero backup-location create"\n',
  });
});
