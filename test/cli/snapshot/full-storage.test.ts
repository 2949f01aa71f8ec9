import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { blobId, openStorage } from '../../../src/blob/index.ts';
import { runHere, type Ran } from '../../support/command-line.ts';
import { canMount, mountSmallDisk } from '../../support/full-disk.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { type FullAnswer, QUIRKY_ENVIRONMENT, startQuirkyS3 } from '../../support/quirky-s3.ts';
import { PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('full-storage-verbs');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const password = join(work, 'password');
fs.writeFileSync(password, PASSWORD);

type Run = (...words: string[]) => Promise<Ran>;
const at =
  (repo: string): Run =>
  (...words) =>
    runHere(...words, '--repo', repo, '--client', 'a@b', '--password-file', password);

async function ok(run: Promise<Ran>): Promise<string> {
  const { code, out, err } = await run;
  expect(code, err).toBe(0);
  return out;
}

/** A new repository with two snapshots of a file that changed as a whole. */
async function twoSnapshots(run: Run, name: string): Promise<string[]> {
  const tree = join(work, name);
  fs.mkdirSync(tree);
  await ok(run('repository', 'create'));
  for (const part of ['first', 'second']) {
    fs.writeFileSync(join(tree, 'file'), noise(part, 3_000_000));
    await ok(run('snapshot', 'create', tree, '--quiet'));
  }
  const ids = (await ok(run('snapshot', 'list', '--quiet'))).trim().split('\n');
  // A deletion in the second of its content is marked a second later.
  await sleep(1100);
  return ids;
}

/** The remedy for a full storage: delete a snapshot, and run maintenance. */
async function freeIt(run: Run, [first = '', second = '']: string[]): Promise<void> {
  await ok(run('snapshot', 'delete', first));
  await sleep(1100);
  await ok(run('repository', 'maintain', '--mode', 'full', '--safety', 'none'));
  expect(await ok(run('snapshot', 'list', '--quiet'))).toBe(`${second}\n`);
  await ok(run('repository', 'verify'));
}

const freeBytes = (path: string): number => {
  const { bavail, bsize } = fs.statfsSync(path);
  return bavail * bsize;
};

describe.runIf(canMount)('a full disk', () => {
  it('is freed by a deletion and maintenance', async () => {
    using disk = mountSmallDisk(24 << 20);
    const repo = join(disk.path, 'repo');
    const run = at(repo);
    const ids = await twoSnapshots(run, 'disk');
    disk.fill();
    const tree = join(work, 'disk');
    fs.writeFileSync(join(tree, 'file'), noise('third', 3_000_000));
    expect((await run('snapshot', 'create', tree)).err).toContain('no space left');
    await freeIt(run, ids);
    expect(freeBytes(disk.path)).toBeGreaterThan(2_000_000);
    expect(fs.statSync(join(repo, 'reserve-for-deletes.f')).size).toBeGreaterThan(256 << 10);
    if (hasKopia) new Kopia(PASSWORD).connect(repo).verifyAll();
  });

  it('loses snapshots by policy', async () => {
    using disk = mountSmallDisk(24 << 20);
    const run = at(join(disk.path, 'repo'));
    const [, second = ''] = await twoSnapshots(run, 'policy');
    const periods = ['hourly', 'daily', 'weekly', 'monthly', 'annual'];
    const none = periods.flatMap((period) => [`--keep-${period}`, '0']);
    await ok(run('policy', 'set', `a@b:${join(work, 'policy')}`, '--keep-latest', '1', ...none));
    disk.fill();
    await ok(run('snapshot', 'expire', '--all'));
    expect(await ok(run('snapshot', 'list', '--quiet'))).toBe(`${second}\n`);
  });

  it('whose reserve was removed says what to do', async () => {
    using disk = mountSmallDisk(24 << 20);
    const run = at(join(disk.path, 'repo'));
    const ids = await twoSnapshots(run, 'removed');
    fs.rmSync(join(disk.path, 'repo', 'reserve-for-deletes.f'));
    disk.fill();
    const refused = await run('snapshot', 'delete', ids[0] ?? '');
    expect(refused.code).toBe(1);
    expect(refused.err).toContain('make some MiB of room');
    fs.truncateSync(join(disk.path, 'filler'), 8 << 20);
    await freeIt(run, ids);
    expect(fs.existsSync(join(disk.path, 'repo', 'reserve-for-deletes.f'))).toBe(true);
  });
});

/** Answers of services without room. */
const ANSWERS: Record<string, FullAnswer> = {
  'Ceph RGW': { status: 403, code: 'QuotaExceeded', message: '' },
  'MinIO with a full disk': {
    status: 507,
    code: 'XMinioStorageFull',
    message: 'Storage backend has reached its minimum free drive threshold.',
  },
  'MinIO with a quota': {
    status: 400,
    code: 'XMinioAdminBucketQuotaExceeded',
    message: 'Bucket quota exceeded',
  },
  versitygw: { status: 507, code: 'InsufficientStorage', message: '' },
  'Backblaze B2': {
    status: 403,
    code: 'AccessDenied',
    message: 'Cannot upload files, storage cap exceeded.',
  },
  'Dell ECS': { status: 507, code: 'Insufficient Storage', message: 'not enough space on disk' },
};

it.each(Object.entries(ANSWERS))('a put that %s has no room for says so', async (_, answer) => {
  await using service = await startQuirkyS3();
  const options = { environment: QUIRKY_ENVIRONMENT, stallMs: 5000 };
  await using storage = await openStorage(service.location('repo'), options);
  service.limit(0, answer);
  const put = storage.putBlob(blobId('xn1'), [Buffer.alloc(10)]);
  await expect(put).rejects.toMatchObject({ code: 'STORAGE_FULL', retry: 'never' });
});

it.each([
  [{ status: 403, code: 'AccessDenied', message: 'Access Denied' }, 'STORAGE_DENIED'],
  [{ status: 503, code: 'SlowDown', message: 'request quota exceeded' }, 'STORAGE_THROTTLED'],
])('a put that is refused with %j is no full storage', async (answer, code) => {
  await using service = await startQuirkyS3();
  const options = { environment: QUIRKY_ENVIRONMENT, stallMs: 5000 };
  await using storage = await openStorage(service.location('repo'), options);
  service.limit(0, answer);
  const put = storage.putBlob(blobId('xn1'), [Buffer.alloc(10)]);
  await expect(put).rejects.toMatchObject({ code });
});

it('a full bucket is freed by a deletion and maintenance', async () => {
  for (const [key, value] of Object.entries(QUIRKY_ENVIRONMENT)) vi.stubEnv(key, value);
  await using service = await startQuirkyS3();
  const run = at(service.location('repo'));
  const ids = await twoSnapshots(run, 'bucket');
  const bytes = (): number =>
    service.objects.values().reduce((sum, { data }) => sum + data.length, 0);
  const before = bytes();
  service.limit(before);
  await freeIt(run, ids);
  expect(bytes()).toBeLessThan(before - 2_000_000);
  expect(service.objects.has('repo/reserve-for-deletes')).toBe(true);
  vi.unstubAllEnvs();
});
