import * as fs from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, silentLogger, systemClock } from '../../src/base/index.ts';
import { blobId, type BlobStorage, openStorage, readOnly } from '../../src/blob/index.ts';
import { type MaintenanceReport, runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest, recordingLogger } from '../support/repositories.ts';
import { canInject, runInjected } from '../support/strace.ts';

const work = tempDirectory('unfinished-puts');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const DAY_SECONDS = 86_400;
const HEX = '0123456789abcdef';

/** A file that was written last so many days ago. */
function write(path: string, days: number, bytes = 10): string {
  fs.mkdirSync(dirname(path), { recursive: true });
  fs.writeFileSync(path, 'x'.repeat(bytes));
  const seconds = Date.now() / 1000 - days * DAY_SECONDS;
  fs.utimesSync(path, seconds, seconds);
  return path;
}

const maintain = (
  repository: Awaited<ReturnType<typeof openTest>>,
  options: { dryRun?: boolean; mode?: 'quick' | 'full'; logger?: typeof silentLogger } = {},
): Promise<MaintenanceReport> =>
  runMaintenance(repository, {
    mode: 'full',
    safety: 'full',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
    ...options,
  });
const cleanUpOf = ({ tasks }: MaintenanceReport) =>
  tasks.find(({ task }) => task === 'cleanup-unfinished-puts')?.stats;

describe('full maintenance', () => {
  it('removes the temporary files of puts that were killed long ago, and nothing else', async () => {
    const root = at('repo');
    await createTest(root);
    const old = [
      write(join(root, `p/123/4567-s1.f.tmp.${HEX}`), 8, 100),
      write(join(root, `kopia.maintenance.f.tmp.${HEX}`), 400, 20),
      write(join(root, `.shards.tmp.${HEX}`), 30, 3),
    ];
    const kept = [
      // A put of another machine may be under way.
      write(join(root, `p/123/4567-s1.f.tmp.${HEX.replace('0', '1')}`), 6),
      write(join(root, `q/123/4567-s1.f.tmp.${HEX}`), 0),
      // Files of unknown programs.
      write(join(root, 'notes.tmp.txt'), 100),
      write(join(root, `p/123/4567-s1.f.tmp.${HEX}.part`), 100),
      write(join(root, `.snapshot/p/4567-s1.f.tmp.${HEX}`), 100),
    ];
    fs.symlinkSync('/nowhere', join(root, `p/link.f.tmp.${HEX}`));
    await using repository = await openTest(root);
    const plan = await maintain(repository, { dryRun: true });
    const found = { toDeleteFileCount: 3, toDeleteFileSize: 123 };
    expect(cleanUpOf(plan)).toEqual({ ...found, deletedFileCount: 0 });
    expect(old.filter((path) => fs.existsSync(path))).toEqual(old);
    expect(cleanUpOf(await maintain(repository, { mode: 'quick' }))).toBeUndefined();
    expect(cleanUpOf(await maintain(repository))).toEqual({ ...found, deletedFileCount: 3 });
    expect(old.filter((path) => fs.existsSync(path))).toEqual([]);
    expect(kept.filter((path) => fs.existsSync(path))).toEqual(kept);
    expect(cleanUpOf(await maintain(repository))).toBeUndefined();
  });

  it('goes on where they cannot be removed', async () => {
    await createTest(at('refusing'));
    const refusing = (storage: BlobStorage): BlobStorage =>
      Object.assign(storage, {
        removeUnfinishedPuts: () => Promise.reject(new Error('the disk says no')),
      });
    await using repository = await openTest(at('refusing'), { wrap: refusing });
    const logger = recordingLogger();
    expect((await maintain(repository, { logger })).mode).toBe('full');
    expect(logger.messages).toContain('could not remove what interrupted puts left behind');
  });
});

it('a storage that is read-only loses nothing', async () => {
  await using storage = readOnly(await openStorage(at('read-only'), { create: true }));
  const path = write(join(at('read-only'), `a.f.tmp.${HEX}`), 100);
  const refused = storage.removeUnfinishedPuts?.({ beforeNs: 1n << 62n, dryRun: false });
  await expect(refused).rejects.toMatchObject({ code: 'STORAGE_READ_ONLY' });
  expect(fs.existsSync(path)).toBe(true);
});

it.skipIf(!canInject)('what a put leaves that is really killed is found by its name', async () => {
  const environment = { ...process.env, LONGSHORE_PASSWORD: 'secret' };
  const root = at('killed');
  await (await openStorage(root, { create: true })).close();
  const parameters = ['repository', 'create', '--repo', root];
  const killed = runInjected(parameters, { inject: 'rename:signal=KILL', environment });
  expect(killed.status).not.toBe(0);
  await using storage = await openStorage(root);
  const later = { beforeNs: systemClock.nowNs() + HOUR_NS, dryRun: false };
  expect(await storage.removeUnfinishedPuts?.(later)).toMatchObject({ count: 1 });
  const left = fs.readdirSync(root, { recursive: true }).map(String);
  expect(left.filter((name) => name.includes('.tmp.'))).toEqual([]);
  expect(left).toContain('kopia.repository.f');
  await storage.putBlob(blobId('a'), [Buffer.of(1)]);
  expect(await storage.removeUnfinishedPuts?.(later)).toEqual({ count: 0, lengthBytes: 0 });
});
