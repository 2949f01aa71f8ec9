import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { BackupArchive, ScratchFile, signingBy, signWith } from '../../../src/archive/index.ts';
import { openBucket } from '../../../src/blob/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  type Resource,
  SECRETS,
} from '../../../src/kube/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { FakeApi } from './support/fake-api.ts';
import { openPage, PATIENT, sectionOf, textOf } from './support/page.ts';

const bucket = tempDirectory('page-signatures');
const scratch = tempDirectory('page-scratch');
const PASSWORD = 'secret';
const NAMES = ['a', 'b', 'c', 'd', 'e'];
const backupOf = (name: string): object => ({
  apiVersion: 'velero.io/v1',
  kind: 'Backup',
  metadata: { name, namespace: 'velero', uid: `uid-${name}` },
  spec: { storageLocation: 'default' },
  status: {
    phase: 'Completed',
    startTimestamp: `2026-11-2${NAMES.indexOf(name)}T01:00:00Z`,
    completionTimestamp: `2026-11-2${NAMES.indexOf(name)}T01:00:00Z`,
    expiration: '2027-11-26T10:00:00Z',
  },
});

describe('signatures on the page', () => {
  const api = new FakeApi();
  let page: Awaited<ReturnType<typeof openPage>>;
  let body = '';
  beforeAll(async () => {
    const opened = await openBucket(bucket);
    const signing = await signingBy({ current: PASSWORD, others: [], earlierKeys: [] });
    const archive = new BackupArchive(opened);
    for (const [at, name] of NAMES.entries()) {
      signWith(opened, { signing, isRequired: false, encrypts: name === 'e' });
      const before = NAMES.slice(0, at).reverse();
      const previous = await archive.previousOf(before.map(backupOf) as never, {});
      const contents = await ScratchFile.create(scratch);
      await archive.put(
        name,
        {
          itemOperations: [],
          volumeInfos: [],
          podVolumeBackups: [],
          volumeSnapshots: [],
          results: {},
          resourceList: {},
          contents,
          metadata: backupOf(name),
        },
        { previous },
      );
      await contents.close();
    }
    await opened.close();
    fs.rmSync(join(bucket, 'backups/b'), { recursive: true });
    const sums = join(bucket, 'backups/d/longshore-checksums.json');
    fs.writeFileSync(sums, fs.readFileSync(sums, 'utf8').replace(/"mac":"../, '"mac":"00'));
    api.put(SECRETS as Resource<never>, {
      metadata: { name: 'velero-repo-credentials' },
      data: { 'repository-password': Buffer.from(PASSWORD).toString('base64') },
    });
    api.put(BACKUP_STORAGE_LOCATIONS, {
      metadata: {
        name: 'default',
        annotations: {
          'longshore.io/require-signed': 'true',
          'longshore.io/encrypt-archive': 'true',
        },
      },
      spec: {
        provider: 'velero.io/fs',
        config: { fspath: bucket },
        objectStorage: { bucket: 'b' },
      },
      status: { phase: 'Available' },
    });
    api.put(BACKUPS, ...NAMES.filter((name) => name !== 'b').map(backupOf));
    const metadata = { name: 'lost', annotations: { 'longshore.io/signed': 'true' } };
    api.put(BACKUPS, { ...backupOf('lost'), metadata });
    page = await openPage(api);
    await vi.waitFor(async () => {
      body = (await page.ask('/')).body;
      expect(sectionOf(body, 'locations')).toContain('signed');
    }, PATIENT);
  });
  afterAll(() => page[Symbol.asyncDispose]());

  it('are counted for each location, with its settings', () => {
    expect(sectionOf(body, 'locations')).toMatch(
      /1 wrong, 3 signed, 1 encrypted, signatures required, new backups are encrypted (✗ (b|d|lost) ?){3}/,
    );
  });

  it('are shown for each backup', async () => {
    const text = sectionOf(body, 'backups');
    expect(text).toMatch(/ a ✓ Completed .* default signed/);
    expect(text).toMatch(/d ✓ Completed [^✓]* default ✗ wrong/);
    expect(text).toMatch(/e ✓ Completed [^✓]* default signed, encrypted/);
    expect(textOf((await page.ask('/backups/d')).body)).toContain('Signature ✗ wrong');
  });

  it('that are wrong, and backups that are missing, stand in the first line and under Attention', () => {
    const figures = textOf(/<ul class="figures".*?<\/ul>/s.exec(body)?.[0] ?? '');
    expect(figures).toMatch(/^\s*✗ 3 changed or missing in the bucket/);
    const attention = sectionOf(body, 'attention');
    expect(attention).toMatch(/Backup b .*it is missing: backup c names it as the one before it/);
    expect(attention).toMatch(/Backup lost .*its files are not in the bucket/);
    expect(attention).toMatch(/Backup d .*its files were changed after they were signed/);
    expect(attention).toContain('longshore backup-location check default');
  });

  it('of other pages are read from memory', async () => {
    const asked = api.countOf('list backupstoragelocations');
    for (let i = 0; i < 5; i++) await page.ask('/');
    expect(api.countOf('list backupstoragelocations')).toBe(asked);
  });
});
