import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  RESTORES,
  SCHEDULES,
} from '../../../src/kube/index.ts';
import { FakeApi } from '../../server/page/support/fake-api.ts';
import { openPage, PATIENT, sectionOf, textOf } from '../../server/page/support/page.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { putDirectoryLocation } from '../browse/support/directory-location.ts';

const work = tempDirectory('page-messages');
const TIMES = {
  startTimestamp: '2026-11-26T09:50:00Z',
  completionTimestamp: '2026-11-26T09:55:00Z',
};

/** A backup or restore that has ended, and the results that it has stored in the bucket. */
function put(api: FakeApi, name: string, status: object, results?: object): void {
  const metadata = { name, uid: `uid-${name}`, namespace: 'velero' };
  const backup = {
    metadata,
    spec: { storageLocation: 'default' },
    status: { ...TIMES, ...status },
  };
  api.put(BACKUPS, backup);
  const folder = join(work, 'backups', name);
  fs.mkdirSync(folder, { recursive: true });
  const kind = { apiVersion: 'velero.io/v1', kind: 'Backup' };
  fs.writeFileSync(join(folder, 'velero-backup.json'), JSON.stringify({ ...kind, ...backup }));
  if (results) {
    fs.writeFileSync(join(folder, `${name}-results.gz`), gzipSync(JSON.stringify(results)));
  }
}

function putRestore(api: FakeApi, name: string, status: object, results: object): void {
  api.put(RESTORES, {
    metadata: { name, uid: `uid-${name}` },
    spec: { backupName: 'partial' },
    status: { ...TIMES, ...status },
  });
  const folder = join(work, 'restores', name);
  fs.mkdirSync(folder, { recursive: true });
  const file = join(folder, `restore-${name}-results.gz`);
  fs.writeFileSync(file, gzipSync(JSON.stringify(results)));
}

describe('the page of a run that failed', () => {
  const api = new FakeApi();
  let page: Awaited<ReturnType<typeof openPage>>;
  beforeAll(async () => {
    putDirectoryLocation(api, work, 'password');
    put(api, 'failed', { phase: 'Failed', failureReason: 'the bucket is full' });
    put(
      api,
      'partial',
      { phase: 'PartiallyFailed', errors: 3, warnings: 1 },
      {
        errors: {
          velero: ['<b>hook</b> failed'],
          cluster: ['cannot list nodes'],
          namespaces: { shop: ['cannot snapshot shop/data: no VolumeSnapshotClass'] },
        },
        warnings: { namespaces: { shop: ['pod web-0 is not running'] } },
      },
    );
    put(api, 'invalid', { phase: 'FailedValidation', validationErrors: ['no such location'] });
    const many = Array.from({ length: 70 }, (_, at) => `error number ${at}`);
    put(api, 'many', { phase: 'PartiallyFailed', errors: 70 }, { errors: { velero: many } });
    put(api, 'good', { phase: 'Completed' });
    const results = { errors: { namespaces: { shop: ['PVC shop/data: Forbidden'] } } };
    putRestore(api, 'back', { phase: 'PartiallyFailed', errors: 1 }, results);
    put(api, 'damaged', { phase: 'PartiallyFailed', errors: 1 });
    fs.writeFileSync(join(work, 'backups/damaged/damaged-results.gz'), 'not gzip');
    put(api, 'taken', { phase: 'Failed', errors: 1 }, { errors: { velero: ['of another one'] } });
    api.put(BACKUPS, {
      metadata: { name: 'taken', uid: 'uid-here', namespace: 'velero' },
      spec: { storageLocation: 'default' },
      status: { ...TIMES, phase: 'Failed', errors: 1, failureReason: 'its name is taken' },
    });
    api.put(BACKUPS, {
      metadata: { name: 'nowhere' },
      spec: { storageLocation: 'far' },
      status: { ...TIMES, phase: 'PartiallyFailed', errors: 1 },
    });
    api.put(BACKUP_STORAGE_LOCATIONS, {
      metadata: { name: 'away' },
      spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
      status: { phase: 'Unavailable', message: 'no route to host' },
    });
    api.put(SCHEDULES, {
      metadata: { name: 'wrong' },
      spec: { schedule: 'every night' },
      status: { phase: 'FailedValidation', validationErrors: ['invalid schedule'] },
    });
    api.put(BACKUP_REPOSITORIES, {
      metadata: { name: 'shop-default-kopia' },
      spec: { backupStorageLocation: 'default', repositoryType: 'kopia', volumeNamespace: 'shop' },
      status: { phase: 'NotReady', message: 'access denied' },
    });
    page = await openPage(api);
    await vi.waitUntil(async () => (await page.ask('/')).status === 200, PATIENT);
  });
  afterAll(async () => {
    await page[Symbol.asyncDispose]();
    fs.rmSync(work, { recursive: true, force: true });
  });
  const bodyOf = async (path: string): Promise<string> => (await page.ask(path)).body;

  it('shows the reason of a Failed backup, and what is not valid of another', async () => {
    expect(textOf(await bodyOf('/backups/failed'))).toContain('Why the bucket is full');
    expect(textOf(await bodyOf('/backups/invalid'))).toContain('Why no such location');
  });

  it('shows the errors and warnings that a backup has stored', async () => {
    const body = await bodyOf('/backups/partial');
    expect(sectionOf(body, 'errors')).toBe(
      'Errors <b>hook</b> failed cluster: cannot list nodes namespace shop: cannot snapshot shop/data: no VolumeSnapshotClass',
    );
    expect(sectionOf(body, 'warnings')).toContain('namespace shop: pod web-0 is not running');
    expect(body).not.toContain('<b>');
  });

  it('shows those of a restore', async () => {
    const body = await bodyOf('/restores/back');
    expect(sectionOf(body, 'errors')).toContain('namespace shop: PVC shop/data: Forbidden');
    expect(body).not.toContain('id="warnings"');
  });

  it('shows the first of many', async () => {
    const text = sectionOf(await bodyOf('/backups/many'), 'errors');
    expect(text).toContain('error number 49');
    expect(text).not.toContain('error number 50');
    expect(text).toContain('and 20 more');
  });

  it('says why errors cannot be read', async () => {
    expect(textOf(await bodyOf('/backups/damaged'))).toContain(
      'Its errors and warnings cannot be read from the bucket: backups/damaged/damaged-results.gz',
    );
    expect(textOf(await bodyOf('/backups/nowhere'))).toMatch(
      /Its errors and warnings cannot be read from the bucket: .*far/,
    );
    const taken = textOf(await bodyOf('/backups/taken'));
    expect(taken).toContain('belong to another Backup of this name');
    expect(taken).not.toContain('of another one');
  });

  it('reads the bucket once for many visitors, and not for a backup without errors', async () => {
    const before = api.countOf('get backupstoragelocations');
    await Promise.all(Array.from({ length: 10 }, () => bodyOf('/backups/partial')));
    expect(textOf(await bodyOf('/backups/good'))).not.toContain('cannot be read');
    expect(api.countOf('get backupstoragelocations')).toBe(before);
  });

  it('tables show the message beside a location, schedule or repository that is not usable', async () => {
    const body = await bodyOf('/');
    expect(sectionOf(body, 'locations')).toContain('✗ Unavailable never no route to host');
    expect(sectionOf(body, 'schedules')).toContain('✗ FailedValidation invalid schedule');
    expect(sectionOf(body, 'repositories')).toContain(
      '✗ NotReady never never not measured access denied',
    );
  });
});
