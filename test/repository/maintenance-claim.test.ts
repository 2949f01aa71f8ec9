import { afterEach, expect, it } from 'vitest';
import { type Clock, Secret, silentLogger, systemClock } from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  createFormat,
  defaultParameters,
  loadMaintenanceParameters,
  type MaintenanceReport,
  openRepository,
  putMaintenanceParameters,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

const PASSWORD = new Secret('test password');
const opened: Repository[] = [];
afterEach(async () => {
  for (const repository of opened.splice(0)) await repository.close();
});

/** A repository whose creation ended after the format blobs: nobody owns its maintenance. */
async function createCutShort(): Promise<MemoryStorage> {
  const storage = new MemoryStorage();
  await createFormat(storage, PASSWORD, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 3,
  });
  return storage;
}

async function open(
  storage: BlobStorage,
  name: string,
  clock: Clock = systemClock,
): Promise<Repository> {
  const client = { username: name, hostname: 'host' };
  const repository = await openRepository({ storage, password: PASSWORD, client, clock });
  opened.push(repository);
  return repository;
}

const maintain = (
  repository: Repository,
  options: { force?: boolean; dryRun?: boolean } = {},
): Promise<MaintenanceReport> =>
  runMaintenance(repository, {
    mode: 'full',
    safety: 'full',
    force: options.force === true,
    dryRun: options.dryRun === true,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
  });

async function ownerOf(storage: MemoryStorage): Promise<string | undefined> {
  return (await loadMaintenanceParameters(await open(storage, 'reader')))?.owner;
}

it('the first client that maintains a repository without an owner becomes the owner', async () => {
  const storage = await createCutShort();
  const first = await open(storage, 'first');
  await maintain(first, { dryRun: true });
  expect(await ownerOf(storage)).toBe(undefined);
  expect((await maintain(first)).mode).toBe('full');
  expect(await ownerOf(storage)).toBe('first@host');
  await expect(maintain(await open(storage, 'second'))).rejects.toMatchObject({
    code: 'NOT_MAINTENANCE_OWNER',
  });
  expect((await maintain(await open(storage, 'first'))).mode).toBe('full');
});

it.each([0n, -240_000_000_000n])(
  'a claim of one who has not seen the owner yet is taken back, with a clock that differs by %s ns',
  async (offsetNs) => {
    const storage = await createCutShort();
    const clock = { ...systemClock, nowNs: () => systemClock.nowNs() + offsetNs };
    const second = await open(storage, 'second', clock);
    expect(await loadMaintenanceParameters(second)).toBe(undefined);
    await maintain(await open(storage, 'first'));
    const message = expect.stringContaining('belongs to first@host') as string;
    await expect(maintain(second)).rejects.toMatchObject({
      code: 'NOT_MAINTENANCE_OWNER',
      message,
    });
    expect(await ownerOf(storage)).toBe('first@host');
  },
);

it('of two clients that begin at the same time one goes on at most', async () => {
  const storage = await createCutShort();
  const both = [await open(storage, 'first'), await open(storage, 'second')];
  const results = await Promise.allSettled(both.map((each) => maintain(each)));
  const done = results.filter(({ status }) => status === 'fulfilled');
  expect(done.length).toBeLessThan(2);
  for (const result of results) {
    if (result.status === 'rejected') {
      expect(result.reason).toMatchObject({ code: 'NOT_MAINTENANCE_OWNER' });
    }
  }
});

it('a clock that is wrong claims nothing: those whose clock is right go on', async () => {
  const storage = await createCutShort();
  const clock = { ...systemClock, nowNs: () => systemClock.nowNs() + 86_400_000_000_000n };
  const ahead = await open(storage, 'ahead', clock);
  await expect(maintain(ahead)).rejects.toMatchObject({ code: 'CLOCK_SKEW' });
  // The blob that told the time is gone again.
  expect([...storage.blobs.keys()].filter((id) => id.startsWith('s'))).toEqual([]);
  expect((await maintain(await open(storage, 'right'))).mode).toBe('full');
  expect(await ownerOf(storage)).toBe('right@host');
});

it('claims that are all taken back leave the parameters as they were', async () => {
  const storage = await createCutShort();
  const admin = await open(storage, 'admin');
  const parameters = {
    ...defaultParameters(admin.client),
    owner: '',
    quick: { enabled: false, interval: 12_345 },
  };
  await putMaintenanceParameters(admin, parameters);
  await admin.flush();
  // Each claim is durable before any claim is read back.
  const bothThere = Promise.withResolvers<undefined>();
  let claims = 0;
  const claiming = (): BlobStorage => {
    let isFirst = true;
    return faulty(storage, async ({ operation, id, when }) => {
      if (operation !== 'put' || !id.startsWith('xn') || when !== 'after' || !isFirst) return;
      isFirst = false;
      if (++claims === 2) bothThere.resolve(undefined);
      await bothThere.promise;
    });
  };
  const both = [await open(claiming(), 'first'), await open(claiming(), 'second')];
  const results = await Promise.allSettled(both.map((each) => maintain(each)));
  expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  expect(await loadMaintenanceParameters(await open(storage, 'reader'))).toEqual(parameters);
  expect((await maintain(await open(storage, 'first'))).mode).toBe('full');
  const claimed = await loadMaintenanceParameters(await open(storage, 'reader'));
  expect(claimed).toEqual({ ...parameters, owner: 'first@host' });
});
