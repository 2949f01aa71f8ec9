import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  type Clock,
  HOUR_NS,
  OffsetClock,
  Secret,
  silentLogger,
  systemClock,
} from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import { splitterSpec } from '../../src/codec/index.ts';
import {
  type ContentId,
  contentIdOf,
  createFormat,
  finishObject,
  objectId,
  type ObjectId,
  openRepository,
  type Repository,
  type TaskContext,
  visitContents,
  writeObject,
} from '../../src/repository/index.ts';
import { SAFETY } from '../../src/repository/maintenance/safety.ts';
import {
  type DirectoryEntry,
  encodeDirectory,
  listSnapshots,
  planGarbageCollection,
  saveSnapshot,
  walkTree,
} from '../../src/snapshot/index.ts';
import { rewriteShortPacks } from '../support/maintenance-tasks.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { CLIENT, DEFAULT_FORMAT, PASSWORD, sameSalt } from '../support/repositories.ts';

const SPLITTER = splitterSpec('FIXED-1M');
const METADATA = {
  prefix: 'k',
  compressor: undefined,
  metadataCompressor: undefined,
  splitter: SPLITTER,
  indexSplitter: SPLITTER,
} as const;
const COMMON = { mode: 0o644, mtimeNs: 1_700_000_000_000_000_000n, uid: 0, gid: 0 };
const SUMMARY = {
  size: 0,
  files: 0,
  symlinks: 0,
  dirs: 1,
  maxTimeNs: COMMON.mtimeNs,
  numFailed: 0,
};
const STATS = {
  totalSize: 0,
  excludedTotalSize: 0,
  fileCount: 0,
  cachedFiles: 0,
  nonCachedFiles: 0,
  dirCount: 0,
  excludedFileCount: 0,
  excludedDirCount: 0,
  ignoredErrorCount: 0,
  errorCount: 0,
};

async function openNew(storage: MemoryStorage, clock?: Clock): Promise<Repository> {
  const password = new Secret(PASSWORD);
  // No other client creates the repository, so there is no wait.
  await createFormat(storage, password, DEFAULT_FORMAT, sameSalt(), () => Promise.resolve());
  return openOther(storage, clock);
}

/** A separate client with the current index. */
const openOther = (storage: MemoryStorage, clock: Clock = systemClock): Promise<Repository> =>
  openRepository({ storage, password: new Secret(PASSWORD), client: CLIENT, clock });

const contextOf = (repository: Repository): TaskContext => ({
  repository,
  safety: SAFETY.none,
  startNs: repository.clock.nowNs() + 10n ** 9n,
  signal: new AbortController().signal,
  logger: silentLogger,
});

const file = (name: string, id: ObjectId): DirectoryEntry => ({
  ...COMMON,
  name,
  type: 'f',
  size: 1,
  objectId: id,
});

async function put(repository: Repository, text: string, prefix: '' | 'k' = ''): Promise<ObjectId> {
  const { contentId } = await repository.contents.write(Buffer.from(text), { prefix });
  return contentId as string as ObjectId;
}

/** In more than one content where `long`; in a form that neither Kopia nor we write where `odd`. */
async function putDirectory(
  repository: Repository,
  name: string,
  entries: readonly DirectoryEntry[],
  form: 'usual' | 'long' | 'odd' = 'usual',
): Promise<DirectoryEntry> {
  const text = Buffer.from(encodeDirectory(entries, SUMMARY)).toString();
  let id: ObjectId;
  if (form === 'long') {
    const half = Math.floor(text.length / 2);
    const parts = [text.slice(0, half), text.slice(half)];
    const pieces = [];
    for (const [i, part] of parts.entries()) {
      const each = await put(repository, part, 'k');
      pieces.push({ start: i * half, length: part.length, id: each, count: 1 });
    }
    id = await finishObject(repository.contents, pieces, METADATA);
  } else {
    const bytes = Buffer.from(form === 'odd' ? text.replace('"entries"', ' "entries"') : text);
    id = await writeObject(repository.contents, [bytes], METADATA);
  }
  return { ...COMMON, name, type: 'd', size: 0, objectId: id, summary: SUMMARY };
}

async function putLarge(repository: Repository, name: string): Promise<ObjectId> {
  const pieces = [];
  for (let i = 0; i < 3; i++) {
    const id = await put(repository, `piece ${i % 2} of ${name}`);
    const { originalLength: length } = repository.contents.findOrThrow(id as string as ContentId);
    pieces.push({ start: i === 0 ? 0 : i * length, length, id, count: 1 });
  }
  return finishObject(repository.contents, pieces, { ...METADATA, prefix: '' });
}

function save(repository: Repository, rootEntry: DirectoryEntry): void {
  saveSnapshot(repository, {
    source: { host: 'h', userName: 'u', path: '/p' },
    description: '',
    startTimeNs: COMMON.mtimeNs,
    endTimeNs: COMMON.mtimeNs,
    stats: STATS,
    rootEntry,
  });
}

/** The simple way: each path of each snapshot by itself, and a set of ids. */
async function reached(repository: Repository): Promise<Set<ContentId>> {
  const used = new Set<ContentId>();
  for (const { rootEntry } of await listSnapshots(repository)) {
    if (!rootEntry) continue;
    for await (const { entry } of walkTree(repository, rootEntry)) {
      await visitContents(repository.contents, entry.objectId, (id) => void used.add(id));
    }
  }
  return used;
}

/** Expects that the reachable contents, and only these, are left. */
async function expectCollected(repository: Repository): Promise<void> {
  const used = await reached(repository);
  for (const { contentId, deleted } of repository.contents.entries()) {
    // Merges of manifests delete theirs.
    if (!contentId.startsWith('m')) expect(deleted, contentId).toBe(!used.has(contentId));
  }
  for (const id of used) expect(repository.contents.has(id), id).toBe(true);
}

async function collect(repository: Repository): Promise<Record<string, unknown>> {
  const plan = await planGarbageCollection(contextOf(repository));
  return (await plan.apply())?.data ?? {};
}

const shape = fc.record({
  snapshots: fc.array(
    fc.array(
      fc.record({
        files: fc.array(fc.nat(12), { maxLength: 6 }),
        form: fc.constantFrom('usual' as const, 'usual' as const, 'long' as const, 'odd' as const),
        nested: fc.boolean(),
      }),
      { minLength: 1, maxLength: 4 },
    ),
    { minLength: 1, maxLength: 5 },
  ),
  garbage: fc.nat(5),
  deleted: fc.array(fc.nat(12), { maxLength: 4 }),
});

it(
  'keeps what snapshots reach and nothing else, as a walk of each path says',
  { timeout: 120_000 },
  async () => {
    // A single repository for all runs, with their snapshots. Opening it derives a key each time.
    await using repository = await openNew(new MemoryStorage());
    let runs = 0;
    await fc.assert(
      fc.asyncProperty(shape, async ({ snapshots, garbage, deleted }) => {
        const run = runs++;
        const objects: ObjectId[] = [];
        // Every third file is of several contents.
        for (let i = 0; i <= 12; i++)
          objects.push(
            i % 3 === 0
              ? await putLarge(repository, `file ${i} of ${run}`)
              : await put(repository, `file ${i} of ${run}`),
          );
        for (let i = 0; i < garbage; i++) await put(repository, `garbage ${i} of ${run}`);
        for (const directories of snapshots) {
          const entries: DirectoryEntry[] = [];
          for (const [d, { files, form, nested }] of directories.entries()) {
            const names = files.map((i, at) => file(`f${at}`, objects[i] as ObjectId));
            const inner = await putDirectory(repository, `d${d}`, names, form);
            entries.push(nested ? await putDirectory(repository, `d${d}`, [inner]) : inner);
          }
          save(repository, await putDirectory(repository, '', entries));
          await repository.flush();
        }
        for (const i of deleted) {
          const id = objectId(objects[i] as string).replace(/^I*/, '') as ContentId;
          if (repository.contents.has(id)) repository.contents.setDeleted(id, true);
          await repository.contents.flush();
        }
        await collect(repository);
        await repository.contents.refresh();
        await expectCollected(repository);
        // A second collection finds no work.
        expect(await collect(repository)).toMatchObject({
          deletedContentCount: 0,
          recoveredContentCount: 0,
        });
      }),
      { numRuns: 25 },
    );
  },
);

it('enters the content of a file as a directory, too, where another entry says so', async () => {
  await using repository = await openNew(new MemoryStorage());
  const inner = await putDirectory(repository, 'd', [file('a', await put(repository, 'a'))]);
  const asFile = { ...file('0', inner.objectId), summary: undefined };
  save(repository, await putDirectory(repository, '', [asFile, inner]));
  await repository.flush();
  await collect(repository);
  await expectCollected(repository);
});

it('reads a directory and an object of several contents once for all snapshots', async () => {
  const storage = new MemoryStorage();
  await using repository = await openNew(storage);
  const large = file('large', await putLarge(repository, 'large'));
  const shared = await putDirectory(repository, 'shared', [large]);
  for (let i = 0; i < 20; i++) {
    const own = file('own', await put(repository, `own ${i}`));
    save(repository, await putDirectory(repository, '', [shared, own, large]));
  }
  await repository.flush();
  const reads = new Map<string, number>();
  const getContent = repository.contents.getContent.bind(repository.contents);
  repository.contents.getContent = (id, options) => {
    reads.set(id, (reads.get(id) ?? 0) + 1);
    return getContent(id, options);
  };
  await collect(repository);
  expect(reads.get(shared.objectId)).toBe(1);
  expect(reads.get(large.objectId.slice(1))).toBe(1);
  await expectCollected(repository);
});

it('reads each part of a pack once, though the trees name what is in it in another order', async () => {
  const PACKS = 30;
  const IN_PACK = 12;
  const storage = new MemoryStorage();
  const leaves: DirectoryEntry[][] = [];
  {
    await using repository = await openNew(storage);
    for (let pack = 0; pack < PACKS; pack++) {
      const inPack: DirectoryEntry[] = [];
      for (let i = 0; i < IN_PACK; i++) {
        const large = i === 0 ? await putLarge(repository, `${pack}`) : undefined;
        const id = large ?? (await put(repository, `${pack}-${i}`));
        inPack.push(await putDirectory(repository, `${i}-${pack}`, [file('a', id)]));
      }
      leaves.push(inPack);
      await repository.flush();
    }
    const mixed = Array.from({ length: IN_PACK }, (_, i) =>
      leaves.flatMap((each) => each[i] ?? []),
    );
    save(repository, await putDirectory(repository, '', mixed.flat()));
    await repository.flush();
  }
  let reads = 0;
  const counted = faulty(storage, ({ operation, id, when }) => {
    if (operation === 'get' && when === 'before' && id.startsWith('q')) reads++;
  });
  await using repository = await openRepository({
    storage: counted,
    password: new Secret(PASSWORD),
    client: CLIENT,
  });
  await listSnapshots(repository);
  reads = 0;
  await planGarbageCollection(contextOf(repository)).then((plan) => plan.count());
  // Once for directories, once for objects of several contents; and the root and the manifests.
  expect(reads).toBeLessThanOrEqual(2 * PACKS + 5);
});

it('walks again where the index was read anew on the way', async () => {
  await using repository = await openNew(new MemoryStorage());
  save(repository, await putDirectory(repository, '', [file('a', await put(repository, 'a'))]));
  await put(repository, 'garbage');
  await repository.flush();
  const getContent = repository.contents.getContent.bind(repository.contents);
  let refreshes = 0;
  repository.contents.getContent = async (id, options) => {
    if (id.startsWith('k') && refreshes++ === 0) await repository.contents.refresh();
    return getContent(id, options);
  };
  expect(await collect(repository)).toMatchObject({ deletedContentCount: 1, inUseContentCount: 2 });
  expect(refreshes).toBe(2);
  // However often that is, there is an end.
  repository.contents.getContent = async (id, options) => {
    if (id.startsWith('k')) await repository.contents.refresh();
    return getContent(id, options);
  };
  expect(await collect(repository)).toMatchObject({ deletedContentCount: 0, inUseContentCount: 2 });
  await expectCollected(repository);
});

it('lists the snapshots anew for each walk', async () => {
  const storage = new MemoryStorage();
  await using repository = await openNew(storage);
  save(repository, await putDirectory(repository, '', [file('a', await put(repository, 'a'))]));
  await repository.flush();
  await using other = await openOther(storage);
  const getContent = repository.contents.getContent.bind(repository.contents);
  let later: ObjectId | undefined;
  repository.contents.getContent = async (id, options) => {
    if (id.startsWith('k') && later === undefined) {
      later = await put(other, 'of a snapshot made meanwhile');
      save(other, await putDirectory(other, '', [file('later', later)]));
      await other.flush();
      await repository.contents.refresh();
    }
    return getContent(id, options);
  };
  expect(await collect(repository)).toMatchObject({ deletedContentCount: 0, inUseContentCount: 4 });
  await using reader = await openOther(storage);
  expect(reader.contents.has(later as string as ContentId)).toBe(true);
  await expectCollected(reader);
});

it.each(['after the walk', 'between two batches'] as const)(
  'brings contents back where another run puts them %s',
  async (moment) => {
    const clock = new OffsetClock(systemClock);
    const storage = new MemoryStorage({ clock });
    await using repository = await openNew(storage, clock);
    const { contents } = repository;
    const needed = [await put(repository, 'needed'), await put(repository, 'needed, too')];
    const files = needed.map((id, i) => file(`f${i}`, id));
    save(repository, await putDirectory(repository, '', files));
    await repository.flush();
    // A second pack, because a single short pack is not rewritten.
    await put(repository, 'another pack');
    await repository.flush();
    const ids = needed.map((id) => id as string as ContentId);
    for (const id of ids) contents.setDeleted(id, true);
    await contents.flush();
    const packsOf = (of: Repository): string[] =>
      ids.map((id) => of.contents.findOrThrow(id).packBlobId);
    const before = packsOf(repository);
    const plan = await planGarbageCollection(contextOf(repository), 1);

    clock.offsetNs += HOUR_NS;
    let after: string[] | undefined;
    const moveOnce = async (): Promise<void> => {
      if (after) return;
      await using other = await openOther(storage, clock);
      await rewriteShortPacks(contextOf(other), ['p', 'q']);
      after = packsOf(other);
      clock.offsetNs += HOUR_NS;
    };
    if (moment === 'after the walk') await moveOnce();
    const flush = contents.flush.bind(contents);
    contents.flush = async () => {
      await flush();
      await moveOnce();
    };
    expect((await plan.apply())?.data).toMatchObject({ recoveredContentCount: 2 });

    await using reader = await openOther(storage, clock);
    for (const id of ids) expect(reader.contents.has(id)).toBe(true);
    expect(packsOf(reader)).toEqual(after);
    expect(after?.filter((pack) => before.includes(pack))).toEqual([]);
  },
);

it('decides by what was written after the walk', async () => {
  await using repository = await openNew(new MemoryStorage());
  save(repository, await putDirectory(repository, '', []));
  const garbage = (await put(repository, 'garbage')) as string as ContentId;
  await repository.flush();
  const context = { ...contextOf(repository), safety: SAFETY.full };
  const later = { ...context, startNs: context.startNs + 25n * 3600n * 10n ** 9n };
  const plan = await planGarbageCollection(later);
  // Somebody brings it back, a day later: it is young again.
  const entry = repository.contents.findOrThrow(garbage);
  const timestampSeconds = entry.timestampSeconds + 24 * 3600;
  repository.contents.session.addEntry({ ...entry, timestampSeconds });
  await repository.contents.flush();
  const stats = await plan.apply();
  expect(stats?.data).toMatchObject({ deletedContentCount: 0, unreferencedRecentContentCount: 1 });
  expect(repository.contents.has(garbage)).toBe(true);
});

it('changes nothing where a directory or an index object cannot be read', async () => {
  await using repository = await openNew(new MemoryStorage());
  const missing = contentIdOf('k', Buffer.alloc(16, 1)) as string as ObjectId;
  const root = await putDirectory(repository, '', [
    { ...COMMON, name: 'd', type: 'd', size: 0, objectId: missing },
  ]);
  save(repository, root);
  await put(repository, 'garbage');
  await repository.flush();
  const planned = planGarbageCollection(contextOf(repository));
  await expect(planned).rejects.toMatchObject({ code: 'CONTENT_NOT_FOUND' });
  for (const { deleted } of repository.contents.entries()) expect(deleted).toBe(false);
  await using other = await openNew(new MemoryStorage());
  const index = `I${await put(other, 'no index')}` as ObjectId;
  save(other, await putDirectory(other, '', [file('large', index)]));
  await other.flush();
  await expect(planGarbageCollection(contextOf(other))).rejects.toMatchObject({
    code: 'BAD_OBJECT',
  });
  for (const { deleted } of other.contents.entries()) expect(deleted).toBe(false);
});

it('takes a directory whose id is longer for another one, though it begins alike', async () => {
  await using repository = await openNew(new MemoryStorage());
  const inner = await putDirectory(repository, 'd', [file('a', await put(repository, 'a'))]);
  const longer = { ...inner, name: 'e', objectId: `${inner.objectId}00` as ObjectId };
  save(repository, await putDirectory(repository, '', [inner, longer], 'odd'));
  await repository.flush();
  const planned = planGarbageCollection(contextOf(repository));
  await expect(planned).rejects.toMatchObject({ code: 'CONTENT_NOT_FOUND' });
});
