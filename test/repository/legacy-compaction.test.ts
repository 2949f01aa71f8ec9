import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  CodedError,
  MINUTE_NS,
  OffsetClock,
  Secret,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import { type BlobId, type BlobStorage, faulty } from '../../src/blob/index.ts';
import {
  type ContentId,
  createFormat,
  openRepository,
  type Repository,
} from '../../src/repository/index.ts';
import type { CompactionLog } from '../../src/repository/content/legacy-index-store.ts';
import { makersFirst } from '../../src/repository/maintenance/legacy-indexes.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import type { TaskContext } from '../../src/repository/maintenance/task.ts';
import { makeEntries, putIndex } from '../support/index-blobs.ts';
import { tempDirectory } from '../support/kopia.ts';
import { compactLegacyIndexes } from '../support/maintenance-tasks.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { createTest, openTest } from '../support/repositories.ts';

const PASSWORD = new Secret('test password');
const work = tempDirectory('legacy-compaction');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const clock = new OffsetClock(systemClock);
/**
 * Holds two compactions in a row: the second took the output of the first, and dropped a deleted
 * content.
 */
const storage = new MemoryStorage({ clock });
let dropped: ContentId;

const open = (of: BlobStorage): Promise<Repository> =>
  openRepository({
    storage: of,
    password: PASSWORD,
    clock,
    client: { username: 'tester', hostname: 'testhost' },
  });

const contextOf = (repository: Repository): TaskContext => ({
  repository,
  safety: SAFETY.full,
  startNs: clock.nowNs(),
  signal: new AbortController().signal,
  logger: silentLogger,
});

/**
 * The same blobs, listed the other way round if wanted: logs are named by hashes, so any order may
 * be.
 */
function copyOf(isReversed: boolean): MemoryStorage {
  const copy = storage.clone();
  const blobs = [...copy.blobs];
  copy.blobs.clear();
  for (const [id, blob] of isReversed ? blobs.reverse() : blobs) copy.blobs.set(id, blob);
  return copy;
}

async function isLive(of: BlobStorage, id: ContentId): Promise<boolean> {
  await using repository = await open(of);
  return repository.contents.has(id);
}

beforeAll(async () => {
  const format = {
    hash: 'BLAKE2B-256-128',
    encryption: 'AES256-GCM-HMAC-SHA256',
    splitter: 'DYNAMIC-4M-BUZHASH',
    version: 1,
  } as const;
  await createFormat(storage, PASSWORD, format);
  await using repository = await open(storage);
  const { contents } = repository;
  const ids: ContentId[] = [];
  for (let i = 0; i < 8; i++) {
    ids.push((await contents.write(Buffer.from(`content ${i}`), { prefix: '' })).contentId);
    await contents.flush();
  }
  dropped = ids[0] as ContentId;
  await compactLegacyIndexes(contextOf(repository), { allIndexes: false });
  clock.offsetNs += 59n * MINUTE_NS;
  await contents.refresh();
  contents.setDeleted(dropped, true);
  await contents.flush();
  const dropDeletedBeforeNs = clock.nowNs() + MINUTE_NS;
  await compactLegacyIndexes(contextOf(repository), { allIndexes: true, dropDeletedBeforeNs });
});

describe.each([false, true])(
  'what a compaction of format 1 dropped (listing reversed: %s)',
  (isReversed) => {
    it('does not come back beside the compaction before', async () => {
      const copy = copyOf(isReversed);
      expect([...copy.blobs.keys()].filter((id) => id.startsWith('m'))).toHaveLength(2);
      expect(await isLive(copy, dropped)).toBe(false);
    });

    it('does not come back when the clean-up is killed between any two deletions', async () => {
      clock.offsetNs += 120n * MINUTE_NS;
      let isWhole = false;
      for (let lives = 0; !isWhole; lives++) {
        const copy = copyOf(isReversed);
        let left = lives;
        const dying = faulty(copy, ({ operation, when, id }) => {
          if (operation !== 'delete' || when !== 'before' || !/^[nm]/.test(id)) return;
          if (left-- === 0) throw new Error('killed');
        });
        await using repository = await open(dying);
        // A further index blob: otherwise this compaction would repeat the second one.
        await repository.contents.write(Buffer.from('more'), { prefix: '' });
        await repository.contents.flush();
        isWhole = await compactLegacyIndexes(contextOf(repository), { allIndexes: true }).then(
          () => true,
          () => false,
        );
        expect(await isLive(copy, dropped)).toBe(false);
      }
    });
  },
);

it('a log that goes away while it is read makes the index be listed anew', async () => {
  const copy = copyOf(false);
  const log = [...copy.blobs.keys()].find((id) => id.startsWith('m'));
  let isGone = false;
  const racing = faulty(copy, ({ operation, when, id }) => {
    if (isGone || operation !== 'get' || when !== 'before' || id !== log) return;
    isGone = true;
    copy.blobs.delete(id);
  });
  await using repository = await open(racing);
  expect(isGone).toBe(true);
  expect(repository.contents.contentCount).toBeGreaterThan(0);
});

it('a log that goes while the index blobs are listed anew ends nothing: they are read', async () => {
  const copy = copyOf(false);
  let isGoing = false;
  const racing = faulty(copy, ({ operation, id, when }) => {
    if (!isGoing || operation !== 'get' || !id.startsWith('m') || when !== 'before') return;
    isGoing = false;
    throw new CodedError('BLOB_NOT_FOUND', 'another client was quicker');
  });
  await using repository = await open(racing);
  expect(await repository.contents.refreshIfChanged()).toBe(false);
  isGoing = true;
  expect(await repository.contents.refreshIfChanged()).toBe(true);
  expect(isGoing).toBe(false);
});

it('an index of many contents is merged in little memory', { timeout: 120_000 }, async () => {
  const repo = join(work, 'many');
  await createTest(repo, { version: 1 });
  const count = 200_000;
  const seconds = 1_700_000_000;
  let before: number;
  {
    await using repository = await openTest(repo);
    const { contents } = repository;
    before = contents.contentCount;
    const entries = makeEntries(count);
    const put = (of: typeof entries): Promise<unknown> =>
      putIndex(repository.storage, repository.codec, of, { prefix: 'n', suffix: '' });
    for (let at = 0; at < count; at += 50_000) await put(entries.slice(at, at + 50_000));
    // The first hundred were deleted later, half of them too late to be dropped.
    const deletedAt = (i: number): number => (i < 50 ? seconds + 10 : seconds + 30);
    await put(
      entries
        .slice(0, 100)
        .map((entry, i) => ({ ...entry, deleted: true, timestampSeconds: deletedAt(i) })),
    );
  }
  const user = new URL('legacy-user.ts', import.meta.url).pathname;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ['--max-old-space-size=40', user, repo, String(seconds + 20)],
    { encoding: 'utf8' },
  );
  expect(stdout, stderr.slice(0, 1000)).toBe(`merged ${before + count - 50}\n`);
  await using reader = await openTest(repo);
  const deleted = Array.from(reader.contents.entries()).filter((entry) => entry.deleted);
  expect(deleted.map(({ timestampSeconds }) => timestampSeconds - seconds)).toEqual(
    Array.from({ length: 50 }, () => 30),
  );
});

describe('compactions that took what others made', () => {
  const logOf = (inputs: string[], outputs: string[]): CompactionLog => {
    const blob = { id: `m${outputs.join('')}` as BlobId, lengthBytes: 1, timestampNs: 0n };
    return { blob, inputs, outputs };
  };
  const outputsOf = (logs: CompactionLog[]): string[] => logs.flatMap(({ outputs }) => outputs);

  it.each(['first', 'last'])('are in order in a chain of 100,000, the newest %s', (place) => {
    const logs = Array.from({ length: 100_000 }, (_, i) => logOf([`n${i}`], [`n${i + 1}`]));
    const listed = place === 'first' ? logs.toReversed() : logs;
    expect(outputsOf(makersFirst(listed))).toEqual(outputsOf(logs));
  });

  it('are in order where one took several, and all are there where they name one another', () => {
    const tree = [
      logOf(['c', 'd'], ['e']),
      logOf(['b'], ['d']),
      logOf(['a'], ['c']),
      logOf(['x'], ['b']),
    ];
    expect(outputsOf(makersFirst(tree))).toEqual(['c', 'b', 'd', 'e']);
    const circle = [logOf(['b'], ['a']), logOf(['a'], ['b']), logOf(['s'], ['s'])];
    expect(outputsOf(makersFirst(circle)).sort()).toEqual(['a', 'b', 's']);
  });
});
