import { expect, it } from 'vitest';
import { ManualClock, HOUR_NS, Secret, silentLogger } from '../../src/base/index.ts';
import { createFormat, openRepository, type Repository } from '../../src/repository/index.ts';
import { PACK_ENTRIES_MAX } from '../../src/repository/content/pack.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import type { TaskContext } from '../../src/repository/maintenance/task.ts';
import {
  deleteUnreferencedPacks,
  extendObjectLocks,
  rewriteShortPacks,
} from '../support/maintenance-tasks.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { noise } from '../support/noise.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, sameSalt } from '../support/repositories.ts';

/** More than a call takes parameters in Node, which is some 125,000. */
const MANY = 150_000;
const password = new Secret(PASSWORD);

const contextOf = (repository: Repository): TaskContext => ({
  repository,
  safety: SAFETY.full,
  startNs: repository.clock.nowNs(),
  signal: new AbortController().signal,
  logger: silentLogger,
});

it(
  'tiny contents fill a pack before they fill the memory, and such packs stay as they are',
  {
    timeout: 60_000,
  },
  async () => {
    const storage = new MemoryStorage();
    await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
    const packs = (): string[] => [...storage.blobs.keys()].filter((id) => id.startsWith('p'));
    {
      await using repository = await openRepository({ storage, password, client: CLIENT });
      let unputMax = 0;
      for (let at = 0; at < MANY; at++) {
        await repository.contents.write(Buffer.from(String(at)), { prefix: '' });
        const { entryCount, durableEntries } = repository.contents.session;
        unputMax = Math.max(unputMax, entryCount - durableEntries);
      }
      // Contents of the open pack, and of a pack that is being put.
      expect(unputMax).toBeLessThan(2 * PACK_ENTRIES_MAX);
      await repository.flush();
    }
    const filled = packs();
    expect(filled).toHaveLength(Math.ceil(MANY / PACK_ENTRIES_MAX));
    await using reader = await openRepository({ storage, password, client: CLIENT });
    expect(reader.contents.contentCount).toBe(MANY);
    // The last pack is short, but a single short pack is not rewritten.
    const { data } = await rewriteShortPacks({ ...contextOf(reader), safety: SAFETY.none }, ['p']);
    expect(data.toRewriteContentCount).toBe(0);
    expect(packs()).toEqual(filled);
  },
);

it('a rewrite of many contents names them by and by, and leaves no short packs behind', async () => {
  const storage = new MemoryStorage();
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
  {
    await using writer = await openRepository({ storage, password, client: CLIENT });
    for (let at = 0; at < 60; at++) {
      await writer.contents.write(noise(`rewrite ${at}`, 1 << 20), { prefix: '' });
      // Half a pack is a short one.
      if (at % 10 === 9) await writer.flush();
    }
  }
  const earlier = new Set(storage.blobs.keys());
  await using repository = await openRepository({ storage, password, client: CLIENT });
  const context = { ...contextOf(repository), safety: SAFETY.none };
  let waitingMax = 0;
  const isDropped = (): boolean => {
    waitingMax = Math.max(waitingMax, repository.contents.session.entryCount);
    return false;
  };
  await rewriteShortPacks(context, ['p'], isDropped, { entriesAtOnce: 20 });
  // Contents of one or two packs, and of the open pack.
  expect(waitingMax).toBeLessThan(45);
  const packs = [...storage.blobs.keys()].filter((id) => id.startsWith('p') && !earlier.has(id));
  expect(packs).toHaveLength(3);
  await using reader = await openRepository({ storage, password, client: CLIENT });
  const named = new Set(Array.from(reader.contents.entries(), ({ packBlobId }) => packBlobId));
  expect([...named].sort()).toEqual(packs.sort());
});

it(
  'a repository of many packs has its locks extended and is cleaned up',
  { timeout: 60_000 },
  async () => {
    const clock = new ManualClock(1_700_000_000n * 10n ** 9n);
    const storage = new MemoryStorage({ clock, hasObjectLock: true });
    await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
    await using repository = await openRepository({ storage, password, client: CLIENT, clock });
    await repository.contents.write(Buffer.from('in use'), { prefix: '' });
    await repository.flush();
    // A pack of a killed session.
    const session = '-s0123456789abcdef123';
    storage.set(`s${'0'.repeat(32)}${session}`, Buffer.from('a marker'));
    const packOf = (at: number): string => `p${String(at).padStart(32, '0')}${session}`;
    for (let at = 0; at < MANY; at++) storage.set(packOf(at), Buffer.from('a pack'));
    clock.advance(100n * 24n * HOUR_NS);

    const locked = Object.assign(Object.create(repository) as Repository, {
      format: { ...repository.format, retention: { mode: 'GOVERNANCE', periodNs: 72n * HOUR_NS } },
    });
    const { data: extended } = await extendObjectLocks(contextOf(locked));
    expect(extended.extendedBlobCount).toBe(storage.blobs.size - 1);
    expect(storage.blobs.get(packOf(MANY - 1))?.retention?.mode).toBe('GOVERNANCE');

    const options = { prefixes: ['p', 'q', 's'] };
    const { data: deleted } = await deleteUnreferencedPacks(contextOf(repository), options);
    expect(deleted).toMatchObject({ deletedPackCount: MANY + 1, retainedPackCount: 0 });
  },
);
