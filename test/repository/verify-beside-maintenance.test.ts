import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import {
  CodedError,
  HOUR_NS,
  MINUTE_NS,
  OffsetClock,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import { blobId, type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  type Problem,
  type Repository,
  runMaintenance,
  verifyContents,
} from '../../src/repository/index.ts';
import {
  type DirectoryEntry,
  planGarbageCollection as collectGarbage,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { atClock } from '../support/clocked-storage.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('verify-beside-maintenance');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** A day passes, and full maintenance runs. */
async function nextDay(repo: string, clock: OffsetClock): Promise<void> {
  clock.offsetNs += 25n * HOUR_NS;
  await using owner = await openTest(repo, { clock, wrap: atClock(repo, clock) });
  await runMaintenance(owner, {
    mode: 'full',
    safety: 'full',
    force: false,
    dryRun: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    collectGarbage,
  });
}

async function problemsOf(reader: Repository): Promise<Problem[]> {
  const problems: Problem[] = [];
  await verifyContents(reader, {
    readAll: true,
    signal: new AbortController().signal,
    onProblem: (problem) => problems.push(problem),
    counters: { contents: 0, packs: 0, bytesRead: 0 },
  });
  return problems;
}

/**
 * Calls back once, before the first read of a pack, which is when a verification has listed all
 * packs.
 */
function atFirstRead(callback: () => Promise<void>): (storage: BlobStorage) => BlobStorage {
  let called: Promise<void> | undefined;
  let isArmed = false;
  return (storage) =>
    faulty(storage, async ({ operation, id }) => {
      if (operation === 'list' && id === 'q') isArmed = true;
      if (operation === 'get' && /^[pq]/.test(id) && isArmed) await (called ??= callback());
    });
}

describe('a verification of days beside full maintenance', () => {
  it('does not take for damage what was collected meanwhile', async () => {
    const repo = at('collected');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    const tree = at('collected-tree');
    fs.mkdirSync(tree);
    const options = { clock, wrap: atClock(repo, clock) };
    await using writer = await openTest(repo, options);
    fs.writeFileSync(join(tree, 'new'), noise('new', 300_000));
    await backUp(writer, tree);
    await nextDay(repo, clock);
    // A pack that is long enough to stay as it is, of contents that no snapshot reaches.
    for (let i = 0; i < 16; i++) {
      await writer.contents.write(noise(`old-${i}`, 1 << 20), { prefix: '' });
    }
    await writer.flush();
    await nextDay(repo, clock);
    await nextDay(repo, clock);
    const wrap = atFirstRead(() => nextDay(repo, clock));
    await using reader = await openTest(repo, { clock, wrap });
    expect(await problemsOf(reader)).toEqual([]);
  });
  it('finds what was moved twice since it was looked up', async () => {
    const repo = at('twice');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    await using writer = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    const tree = at('twice-tree');
    fs.mkdirSync(tree);
    for (const name of ['a', 'b']) {
      fs.writeFileSync(join(tree, name), noise(name, 300_000));
      await backUp(writer, tree);
    }
    const wrap = atFirstRead(async () => {
      for (let day = 0; day < 2; day++) await nextDay(repo, clock);
      // The reader missed something else, and loaded the index again.
      await reader.contents.refresh();
      fs.writeFileSync(join(tree, 'c'), noise('c', 300_000));
      await using other = await openTest(repo, { clock, wrap: atClock(repo, clock) });
      await backUp(other, tree);
      for (let day = 0; day < 2; day++) await nextDay(repo, clock);
    });
    await using reader = await openTest(repo, { clock, wrap });
    expect(await problemsOf(reader)).toEqual([]);
  });

  it('finds packs that came after the listing, in an index that was read anew since', async () => {
    const repo = at('younger');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    await using writer = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    const tree = at('younger-tree');
    fs.mkdirSync(tree);
    const roots: DirectoryEntry[] = [];
    for (const name of ['a', 'b']) {
      fs.writeFileSync(join(tree, name), noise(name, 300_000));
      roots.push((await backUp(writer, tree)).rootEntry);
    }
    const wrap = atFirstRead(async () => {
      for (let day = 0; day < 2; day++) await nextDay(repo, clock);
    });
    await using reader = await openTest(repo, { clock, wrap });
    const signal = new AbortController().signal;
    const { objects, problems } = await verifyTrees(reader, roots, { readAll: false, signal });
    expect(problems).toEqual([]);
    expect(objects).toBe(4);
  });

  it('does not read a long index anew for each content of a pack that is lost', async () => {
    const repo = at('lost');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    await using writer = await openTest(repo, { clock, wrap: atClock(repo, clock) });
    const write = async (seed: string): Promise<void> => {
      await writer.contents.write(noise(seed, 1000), { prefix: '' });
    };
    for (let i = 0; i < 100; i++) await write(`lost-${i}`);
    await writer.flush();
    const [pack] = await Array.fromAsync(writer.storage.listBlobs('p'));
    let looks = 0;
    let questions = 0;
    let isOpen = false;
    await using reader = await openTest(repo, {
      clock,
      wrap: (storage) =>
        faulty(storage, async ({ operation, id }) => {
          if (operation === 'metadata' && id === pack?.id) questions++;
          if (!isOpen || operation !== 'list' || id !== 'x') return;
          looks++;
          // Other clients write all the time, and it takes minutes to read the existing contents.
          await write(`meanwhile-${looks}`);
          await writer.flush();
          clock.offsetNs += 2n * MINUTE_NS;
        }),
    });
    isOpen = true;
    clock.offsetNs += HOUR_NS;
    await reader.storage.deleteBlob(blobId(pack?.id ?? ''));
    expect(await problemsOf(reader)).toHaveLength(100);
    expect(looks).toBeLessThan(10);
    expect(questions).toBe(1);
  });
});

describe('a verification whose storage goes away', () => {
  it('ends with that failure, and calls nothing damaged', async () => {
    const repo = at('away');
    await createTest(repo);
    const tree = at('away-tree');
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), noise('away', 300_000));
    const denied = new CodedError('STORAGE_DENIED', 'the token has expired');
    let isAway = false;
    await using reader = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, ({ operation }) => {
          if (isAway && operation === 'get') throw denied;
        }),
    });
    const { rootEntry } = await backUp(reader, tree);
    isAway = true;
    await expect(problemsOf(reader)).rejects.toBe(denied);
    const options = { readAll: true, signal: new AbortController().signal };
    await expect(verifyTrees(reader, [rootEntry], options)).rejects.toBe(denied);
  });

  it('ends where the file system of a directory was unmounted', async () => {
    const repo = at('unmounted');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    const wrap = atFirstRead(async () => {
      await fs.promises.rename(repo, at('elsewhere'));
      await fs.promises.mkdir(repo);
      clock.offsetNs += HOUR_NS;
    });
    await using reader = await openTest(repo, { clock, wrap });
    await expect(problemsOf(reader)).rejects.toMatchObject({ code: 'STORAGE_NOT_FOUND' });
    expect(reader.contents.contentCount).toBeGreaterThan(0);
  });

  it('takes for collected only what the index says was deleted', async () => {
    const repo = at('emptied');
    await createTest(repo);
    const clock = new OffsetClock(systemClock);
    const wrap = atFirstRead(async () => {
      for (const name of fs.readdirSync(repo)) {
        if (/^[pqx]/.test(name)) await fs.promises.rm(join(repo, name), { recursive: true });
      }
      clock.offsetNs += HOUR_NS;
    });
    await using reader = await openTest(repo, { clock, wrap });
    const { contentCount } = reader.contents;
    expect(await problemsOf(reader)).toHaveLength(contentCount);
    expect(reader.contents.contentCount).toBe(0);
  });

  it('goes on where it fails for one blob only', async () => {
    const repo = at('one');
    await createTest(repo);
    const failed = new CodedError('STORAGE_FAILED', 'input/output error');
    await using reader = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, ({ operation, id }) => {
          if (operation === 'get' && id.startsWith('p')) throw failed;
        }),
    });
    for (const seed of ['one', 'two']) {
      await reader.contents.write(noise(seed, 1000), { prefix: '' });
      await reader.flush();
    }
    const said = /^blob p\S+ could not be read, which need not be damage: .*: input\/output error$/;
    const unread = {
      code: 'UNREADABLE_CONTENT',
      message: expect.stringMatching(said) as unknown,
    };
    expect(await problemsOf(reader)).toMatchObject([unread, unread]);
  });
});
