import { describe, expect, it, vi } from 'vitest';
import { HOUR_NS, ManualClock, Secret, silentLogger } from '../../src/base/index.ts';
import { type BlobId, listAll } from '../../src/blob/index.ts';
import { createFormat, openRepository, type Repository } from '../../src/repository/index.ts';
import { contentIv } from '../../src/codec/index.ts';
import { type ContentId, contentIdOf, hashOf } from '../../src/repository/index/content-id.ts';
import { loadLocalIndex } from '../../src/repository/content/local-index.ts';
import { sealBlob } from '../../src/repository/content/sealed-blob.ts';
import { comparePrecedence, type IndexEntry } from '../../src/repository/index/entry.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody } from '../../src/repository/index/index-body.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import type { TaskContext } from '../../src/repository/maintenance/task.ts';
import { createInProcessPool } from '../../src/workers/index.ts';
import { makeEntries, putIndex } from '../support/index-blobs.ts';
import {
  deleteUnreferencedPacks,
  putWatermark,
  rewriteShortPacks,
} from '../support/maintenance-tasks.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, sameSalt } from '../support/repositories.ts';

/**
 * Contents that are stored twice at the same time: link targets and equal directories. The writers
 * do not see each other.
 */
const TARGET = Buffer.from('../target');
const password = new Secret(PASSWORD);
const clock = new ManualClock(1_700_000_000n * 10n ** 9n);

async function openWithLanes(storage: MemoryStorage): Promise<Repository> {
  let calls = 1 << 24;
  return openRepository({
    storage,
    password,
    client: CLIENT,
    clock,
    // Names of packs descend, so the pack that is filled last does not take precedence.
    random: (length) => Buffer.alloc(length, (--calls).toString(16).padStart(6, '0'), 'hex'),
    dataPath: {
      threads: 1,
      factory: createInProcessPool,
      memory: { slabCount: 8, dataLanes: 2, packsInFlight: 2 },
    },
  });
}

interface TwiceStored {
  /** In two packs. */
  readonly twin: IndexEntry;
  /** In one of them each. */
  readonly others: readonly IndexEntry[];
}

/** Appends a content again, without a look at the pending contents of others. */
async function append({ contents, codec }: Repository, data: Uint8Array): Promise<ContentId> {
  const { hasher, encryptor } = codec;
  const contentId = contentIdOf('', hasher.hash([data]));
  const timestampSeconds = contents.timestampAfter(undefined);
  const content = { contentId, originalLength: data.length, timestampSeconds };
  const iv = contentIv(hashOf(contentId));
  await contents.session.append('p', [content], data.length + encryptor.overheadBytes, (out) => [
    { packedLength: encryptor.seal([data], iv, out), compressionHeaderId: 0 },
  ]);
  return contentId;
}

async function storeTwice(repository: Repository): Promise<TwiceStored> {
  const { contents } = repository;
  const [twin] = await Promise.all([append(repository, TARGET), append(repository, TARGET)]);
  const others = await Promise.all(
    ['one', 'other'].map((text) => append(repository, Buffer.from(text))),
  );
  await contents.flush();
  const found = others.map((id) => contents.findOrThrow(id));
  expect(new Set(found.map(({ packBlobId }) => packBlobId)).size).toBe(2);
  return { twin: contents.findOrThrow(twin), others: found };
}

const contextOf = (repository: Repository): TaskContext => ({
  repository,
  safety: SAFETY.full,
  startNs: clock.nowNs(),
  signal: new AbortController().signal,
  logger: silentLogger,
});

/**
 * Whatever lies beside the twin in the pack that is not named is dropped, and maintenance comes by.
 */
async function cleanUp(repository: Repository, { twin, others }: TwiceStored): Promise<number> {
  const { contents } = repository;
  for (const { contentId, packBlobId } of others) {
    if (packBlobId !== twin.packBlobId) contents.setDeleted(contentId, true);
  }
  await contents.flush();
  clock.advance(100n * HOUR_NS);
  const context = contextOf(repository);
  await putWatermark(context, clock.nowNs() - HOUR_NS);
  await contents.refresh();
  const { data } = await deleteUnreferencedPacks(context, { prefixes: ['p', 'q', 's'] });
  return Number(data.deletedPackCount);
}

it('what many write at once is stored once', async () => {
  const storage = new MemoryStorage({ clock });
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
  await using repository = await openWithLanes(storage);
  const { contents } = repository;
  const writes = Array.from({ length: 300 }, () => contents.write(TARGET, { prefix: '' }));
  const written = await Promise.all(writes);
  expect(written.filter(({ isNew }) => isNew)).toHaveLength(1);
  await contents.flush();
  const packs = await listAll(storage, 'p');
  expect(packs.map(({ lengthBytes }) => lengthBytes < 8192)).toEqual([true]);
  expect(Buffer.from(await contents.getContent(written[299]?.contentId ?? expect.fail()))).toEqual(
    TARGET,
  );
});

it('what many write at once fails for all of them', async () => {
  const storage = new MemoryStorage({ clock });
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
  await using repository = await openWithLanes(storage);
  const { contents, codec } = repository;
  const seal = vi.spyOn(codec.encryptor, 'seal').mockImplementation(() => {
    throw new Error('no more');
  });
  const write = (): Promise<unknown> => contents.write(TARGET, { prefix: '' });
  const outcomes = await Promise.allSettled([write(), write()]);
  expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  seal.mockRestore();
  // No trace of a pending write is left.
  expect(await write()).toMatchObject({ isNew: true });
});

describe('a content that was stored twice at once', () => {
  it('is named as the indexes of its packs say, and the other pack may go', async () => {
    const storage = new MemoryStorage({ clock });
    await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
    await using repository = await openWithLanes(storage);
    const stored = await storeTwice(repository);
    for (const pack of await listAll(storage, 'p')) {
      const local = await loadLocalIndex(storage, repository.codec, pack);
      const entry = local?.find(({ contentId }) => contentId === stored.twin.contentId);
      if (!entry) expect.fail('each pack holds it');
      expect(comparePrecedence(stored.twin, entry)).toBeGreaterThanOrEqual(0);
    }
    expect(await cleanUp(repository, stored)).toBe(1);
    expect(Buffer.from(await repository.contents.getContent(stored.twin.contentId))).toEqual(
      TARGET,
    );
  });

  it.each(['there', 'gone'] as const)(
    'keeps no pack for good where only the other one is named, as writers did: that one is %s',
    async (how) => {
      const storage = new MemoryStorage({ clock });
      await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
      await using repository = await openWithLanes(storage);
      const { contents, codec } = repository;
      const { twin, others } = await storeTwice(repository);
      const other = others.find(({ packBlobId }) => packBlobId !== twin.packBlobId);
      if (!other) expect.fail('there are two packs');
      const pack = (await listAll(storage, other.packBlobId))[0] ?? expect.fail();
      const local = await loadLocalIndex(storage, codec, pack);
      const named = local?.find(({ contentId }) => contentId === twin.contentId) ?? expect.fail();
      for (const { id } of await listAll(storage, 'xn')) await storage.deleteBlob(id);
      await putIndex(storage, codec, [named, ...others]);
      await contents.refresh();
      if (how === 'gone') await storage.deleteBlob(named.packBlobId as BlobId);
      const cleaned = cleanUp(repository, { twin: named, others });
      if (how === 'there') expect(await cleaned).toBe(1);
      else await expect(cleaned).rejects.toMatchObject({ code: 'INDEX_INCOMPLETE' });
    },
  );

  it('is named once by a checkpoint that names both packs', async () => {
    const storage = new MemoryStorage({ clock });
    await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
    await using repository = await openWithLanes(storage);
    const { contents } = repository;
    const [twin] = await Promise.all([append(repository, TARGET), append(repository, TARGET)]);
    // Two packs are filled side by side.
    for (let at = 0; at < 22; at++) {
      const pair = [2 * at, 2 * at + 1];
      await Promise.all(pair.map((fill) => append(repository, Buffer.alloc(1 << 20, fill))));
    }
    expect(await listAll(storage, 'p')).toHaveLength(2);
    await contents.checkpoint();
    const named = [...contents.entries()].filter(({ contentId }) => contentId === twin);
    expect(named).toHaveLength(1);
    const packs = (await listAll(storage, 'p')).map(({ id }) => String(id)).sort();
    expect(named[0]?.packBlobId).toBe(packs.at(-1));
  });
});

/**
 * Early versions wrote such index bodies. Kopia uses the entry that takes precedence, and deletes
 * the other pack.
 */
describe('an index body that names a content several times', () => {
  const around = sortEntries(makeEntries(300));
  const twinsAt = (position: number): { entries: IndexEntry[]; best: IndexEntry } => {
    const worse = around[position] ?? expect.fail();
    const best = { ...worse, packBlobId: `p${'f'.repeat(32)}-s0123456789abcdef147` };
    const several = Array.from({ length: 1 + (position % 4) }, () => worse);
    const rows = position % 2 === 0 ? [...several, best] : [best, ...several];
    return { entries: around.toSpliced(position, 1, ...rows), best };
  };

  it.each([0, 1, 2, 3, 150, 151, 152, 153, 298, 299])(
    'is read as one that names it once, at row %i',
    (position) => {
      const { entries, best } = twinsAt(position);
      const body = new IndexBody(memorySource(Buffer.from(encodeIndex(2, entries))));
      const found = body.find(Buffer.from(`00${best.contentId}`, 'hex'));
      expect(body.entryAt(found)).toEqual(best);
    },
  );

  it('ends no rewrite when the other pack is gone', async () => {
    const storage = new MemoryStorage({ clock });
    await createFormat(storage, password, DEFAULT_FORMAT, sameSalt());
    await using repository = await openWithLanes(storage);
    const { contents, codec } = repository;
    const { twin, others } = await storeTwice(repository);
    for (const { id } of await listAll(storage, 'xn')) await storage.deleteBlob(id);
    const gone = others.find(({ packBlobId }) => packBlobId !== twin.packBlobId) ?? expect.fail();
    await storage.deleteBlob(gone.packBlobId as BlobId);
    const twins = [{ ...twin, packBlobId: gone.packBlobId }, twin];
    const left = others.filter((each) => each !== gone);
    const rows = [...twins, ...left].sort((a, b) => (a.contentId < b.contentId ? -1 : 1));
    const { id, bytes } = sealBlob(codec, 'xn0_', '-s0-c1', encodeIndex(2, rows));
    await storage.putBlob(id, [bytes]);
    await contents.refresh();
    clock.advance(100n * HOUR_NS);
    await rewriteShortPacks(contextOf(repository), ['p']);
    expect(Buffer.from(await contents.getContent(twin.contentId))).toEqual(TARGET);
  });
});
