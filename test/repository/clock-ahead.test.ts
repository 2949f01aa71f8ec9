import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import {
  HOUR_NS,
  MINUTE_NS,
  OffsetClock,
  Secret,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  type ContentId,
  createFormat,
  type MaintenanceReport,
  openRepository,
  type Repository,
  runMaintenance,
} from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

const PASSWORD = new Secret('test password');
/** Two packs. */
const CHUNKS = 8;
const CHUNK_BYTES = 4 << 20;

it('a clock that is set ahead in the middle of maintenance deletes nothing of a backup that runs', async () => {
  const world = new OffsetClock(systemClock);
  const storage = new MemoryStorage({ clock: world });
  await createFormat(storage, PASSWORD, {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 3,
  });
  const client = { username: 'tester', hostname: 'testhost' };
  const open = (of: BlobStorage, clock = world): Promise<Repository> =>
    openRepository({ storage: of, password: PASSWORD, clock, client });
  const clock = new OffsetClock(world);
  let jumpNs = 0n;
  const watched = faulty(storage, ({ operation, id }) => {
    // The first look at the packs that may go.
    if (operation === 'list' && id === 'p') clock.offsetNs = jumpNs;
  });
  const maintain = async (): Promise<MaintenanceReport> => {
    await using owner = await open(watched, clock);
    return await runMaintenance(owner, {
      mode: 'full',
      safety: 'full',
      force: true,
      dryRun: false,
      signal: new AbortController().signal,
      logger: silentLogger,
      collectGarbage,
    });
  };
  {
    await using first = await open(storage);
    await first.contents.write(Buffer.from('something that the index names'), { prefix: '' });
    await first.flush();
  }
  // The rewrite of this run lets the next one delete.
  await maintain();
  world.offsetNs += 2n * HOUR_NS;
  await using writer = await open(storage);
  const written = new Map<ContentId, Buffer>();
  for (let i = 0; i < CHUNKS; i++) {
    const data = randomBytes(CHUNK_BYTES);
    written.set((await writer.contents.write(data, { prefix: '' })).contentId, data);
  }
  const packs = (): number => [...storage.blobs.keys()].filter((id) => id.startsWith('p')).length;
  while (packs() < 2) await sleep(10);
  world.offsetNs += MINUTE_NS;
  jumpNs = 8n * 24n * HOUR_NS;
  const { tasks } = await maintain();
  const deletion = tasks.find(({ task }) => task === 'full-delete-blobs');
  expect(clock.offsetNs).toBe(jumpNs);
  expect(deletion?.stats).toMatchObject({ deletedPackCount: 0 });
  await writer.flush();
  await using reader = await open(storage);
  for (const [id, data] of written) {
    expect(data.equals(await reader.contents.getContent(id))).toBe(true);
  }
});
