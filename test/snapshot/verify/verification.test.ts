import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  CanceledError,
  CodedError,
  HOUR_NS,
  OffsetClock,
  silentLogger,
  systemClock,
} from '../../../src/base/index.ts';
import { type BlobId, type BlobStorage, faulty, type GetOptions } from '../../../src/blob/index.ts';
import { ForwardingStorage } from '../../../src/blob/wrappers/forwarding.ts';
import {
  DamagedContents,
  type IndexEntry,
  loadVerification,
  putVerification,
  type Repository,
  runMaintenance,
  verifyContents,
} from '../../../src/repository/index.ts';
import {
  listSnapshots,
  newTreeCounters,
  planGarbageCollection,
  type VerificationReport,
  verifyRepository,
} from '../../../src/snapshot/index.ts';
import { atClock } from '../../support/clocked-storage.ts';
import { flip, pathOfBlob } from '../../support/damage.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
  restore,
} from '../../support/repositories.ts';
import { age } from '../../support/trees.ts';

const work = tempDirectory('verification');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const base = join(work, 'base');
const tree = join(work, 'tree');
const FILES = 24;
let copies = 0;

/** Many packs of one file each. */
beforeAll(async () => {
  await createTest(base);
  await using repository = await openTest(base);
  for (let i = 0; i < FILES; i++) {
    fs.mkdirSync(join(tree, String(i % 4)), { recursive: true });
    fs.writeFileSync(join(tree, String(i % 4), `file-${i}`), noise(`file-${i}`, 20_000));
    age(tree);
    if (i % 2 === 1) {
      await backUp(repository, tree, { accept: () => repository.contents.flush() });
    }
  }
});

function copy(): string {
  const repo = join(work, `copy-${copies++}`);
  fs.cpSync(base, repo, { recursive: true });
  return repo;
}

type Options = Partial<Parameters<typeof verifyRepository>[1]>;
const verify = (repository: Repository, options: Options = {}): Promise<VerificationReport> =>
  verifyRepository(repository, {
    record: true,
    signal: new AbortController().signal,
    logger: silentLogger,
    counters: { contents: 0, packs: 0, bytesRead: 0 },
    treeCounters: newTreeCounters(),
    ...options,
  });

/** Notes how much each read of a pack of file data asks for. */
class LengthsOfReads extends ForwardingStorage {
  readonly #lengths: number[];

  constructor(inner: BlobStorage, lengths: number[]) {
    super(inner);
    this.#lengths = lengths;
  }

  override getBlob(id: BlobId, options?: GetOptions): Promise<Uint8Array> {
    if (id.startsWith('p')) this.#lengths.push(options?.lengthBytes ?? Infinity);
    return super.getBlob(id, options);
  }
}

const files = (repository: Repository): IndexEntry[] =>
  [...repository.contents.entries({ prefix: '' })].filter(({ deleted }) => !deleted);

function damageFile(repository: Repository, repo: string, at = 0): IndexEntry {
  const entry = files(repository)[at] as IndexEntry;
  flip(pathOfBlob(repo, entry.packBlobId), entry, 1000);
  return entry;
}

describe('a verification by sample', () => {
  it('reads other packs each time, until it has read all of them', async () => {
    const repo = copy();
    const damaged = new Set<string>();
    {
      await using repository = await openTest(repo);
      for (let i = 0; i < files(repository).length; i++) {
        damaged.add(damageFile(repository, repo, i).contentId);
      }
    }
    const found = new Set<string>();
    let bytes = 0;
    for (let run = 0; run < 4; run++) {
      await using repository = await openTest(repo);
      const counters = { contents: 0, packs: 0, bytesRead: 0 };
      const report = await verify(repository, { share: 0.25, counters });
      expect(report.readShare).toBe(0.25);
      expect(report.position).toBeCloseTo(((run + 1) * 0.25) % 1);
      for (const { contentId } of report.problems.held) if (contentId) found.add(contentId);
      // What earlier runs found is not forgotten.
      expect(report.damagedContents).toBe(found.size);
      bytes += counters.bytesRead;
    }
    expect([...found].sort()).toEqual([...damaged].sort());
    expect(bytes).toBeGreaterThan(FILES * 20_000);
  });

  it('finds packs that are missing whatever the sample', async () => {
    const repo = copy();
    await using repository = await openTest(repo);
    const { packBlobId } = files(repository)[3] as IndexEntry;
    fs.rmSync(pathOfBlob(repo, packBlobId));
    const { problems, concerned } = await verify(repository, { share: 0.01 });
    expect(new Set(problems.held.map(({ blobId }) => blobId ?? packBlobId))).toEqual(
      new Set([packBlobId]),
    );
    expect(problems.held[0]?.code).toBe('MISSING_PACK');
    const paths = concerned.damaged.flatMap((each) => each.paths);
    expect(paths[0]).toMatch(/^\/\d\/file-\d+$/);
  });

  it('stops when its time is over, and the next run goes on there', async () => {
    const repo = copy();
    const clock = new OffsetClock(systemClock);
    await using repository = await openTest(repo, {
      clock,
      wrap: (storage) =>
        faulty(storage, ({ operation, id }) => {
          if (operation === 'get' && id.startsWith('p')) clock.offsetNs += HOUR_NS;
        }),
    });
    const first = await verify(repository, { share: 1, budgetNs: HOUR_NS / 2n });
    expect(first.readShare).toBeGreaterThan(0);
    expect(first.readShare).toBeLessThan(1);
    expect(first.position).toBeCloseTo(first.readShare);
    const second = await verify(repository, { share: 1, budgetNs: HOUR_NS / 2n });
    expect(second.position).toBeCloseTo(first.readShare + second.readShare);
  });

  /** Each read of a pack of file data takes an hour. */
  const slowly = (clock: OffsetClock, reads: string[] = []): Parameters<typeof openTest>[1] => ({
    clock,
    wrap: (storage) =>
      faulty(storage, ({ operation, id, when }) => {
        if (operation !== 'get' || when !== 'before' || !id.startsWith('p')) return;
        clock.offsetNs += HOUR_NS;
        reads.push(id);
      }),
  });

  it('looks first at what was damaged before, though its time does not suffice for the rest', async () => {
    const repo = copy();
    let damaged: IndexEntry;
    let path: string;
    {
      await using repository = await openTest(repo);
      const byName = files(repository).sort((a, b) => (a.packBlobId < b.packBlobId ? -1 : 1));
      // The sample begins at the other end.
      damaged = byName.at(-1);
      path = pathOfBlob(repo, damaged.packBlobId);
      fs.copyFileSync(path, `${path}.whole`);
      flip(path, damaged, 1000);
      expect((await verify(repository, { readAll: true })).damagedContents).toBe(1);
    }
    fs.renameSync(`${path}.whole`, path);
    await using repository = await openTest(repo, slowly(new OffsetClock(systemClock)));
    const { damagedContents, readShare, record } = await verify(repository, {
      budgetNs: (3n * HOUR_NS) / 2n,
    });
    expect([damagedContents, record]).toEqual([0, 'written']);
    expect(readShare).toBeGreaterThan(0);
    expect(readShare).toBeLessThan(1);
  });

  it('leaves half of a limited time to the other packs, and reads none twice', async () => {
    const repo = copy();
    {
      await using repository = await openTest(repo);
      for (let i = 0; i < FILES; i++) damageFile(repository, repo, i);
      await verify(repository, { readAll: true });
    }
    const reads: string[] = [];
    await using repository = await openTest(repo, slowly(new OffsetClock(systemClock), reads));
    // Neighbours of damaged contents are read, and then each content twice more.
    const limited = await verify(repository, { budgetNs: 24n * HOUR_NS });
    const places = files(repository).map(
      ({ packBlobId }) => Number.parseInt(packBlobId.slice(1, 13), 16) / 2 ** 48,
    );
    expect(places.filter((place) => place < limited.readShare).length).toBeGreaterThan(3);
    expect(reads.length).toBeGreaterThan(24);
    const ids = limited.problems.held.map(({ contentId }) => contentId);
    expect(new Set(ids).size).toBe(ids.length);
    expect(limited.damagedContents).toBe(FILES);
    // With time for all, each damaged content is reported once.
    const whole = await verify(repository, { budgetNs: 1000n * HOUR_NS });
    const named = whole.problems.held.flatMap(({ contentId }) => contentId ?? []);
    expect(new Set(named).size).toBe(FILES);
    expect(named).toHaveLength(FILES);
  });

  it('holds a part of the entries of a damaged pack at a time, however many it has', async () => {
    const repo = join(work, 'many-in-one');
    const many = join(work, 'many-in-one-tree');
    await createTest(repo);
    fs.mkdirSync(many);
    for (let i = 0; i < 10; i++)
      fs.writeFileSync(join(many, `file-${i}`), noise(`many-${i}`, 9000));
    const reads: number[] = [];
    await using repository = await openTest(repo, {
      wrap: (storage) => new LengthsOfReads(storage, reads),
    });
    await backUp(repository, many);
    const entries = files(repository);
    const [pack] = [...new Set(entries.map(({ packBlobId }) => packBlobId))] as [string];
    expect(entries).toHaveLength(10);
    const lastId = entries.at(-1);
    flip(pathOfBlob(repo, pack), lastId, 1000);
    const read = async (entriesMax: number): Promise<[string[], string[]]> => {
      const [found, rechecked]: [string[], string[]] = [[], []];
      reads.length = 0;
      await verifyContents(repository, {
        readAll: false,
        recheck: [pack],
        entriesMax,
        signal: new AbortController().signal,
        counters: { contents: 0, packs: 0, bytesRead: 0 },
        onRechecked: (each) => rechecked.push(each),
        onProblem: ({ contentId }) => found.push(contentId),
      });
      return [found, rechecked];
    };
    expect(await read(100)).toEqual([[lastId.contentId], [pack]]);
    expect(Math.max(...reads)).toBeGreaterThan(9 * 9000);
    expect(await read(1)).toEqual([[lastId.contentId], [pack]]);
    expect(Math.max(...reads)).toBeLessThan(2 * 9000);
  });

  it('keeps what it has found, and its place, when it is ended in the middle', async () => {
    const repo = copy();
    const controller = new AbortController();
    const reads = { count: 0 };
    let damaged: IndexEntry;
    {
      await using repository = await openTest(repo, {
        wrap: (storage) =>
          faulty(storage, ({ operation, id }) => {
            if (operation !== 'get' || !id.startsWith('p')) return;
            if (++reads.count === 10) controller.abort(new CanceledError('shutdown'));
          }),
      });
      const byName = files(repository).sort((a, b) => (a.packBlobId < b.packBlobId ? -1 : 1));
      damaged = byName[0] as IndexEntry;
      flip(pathOfBlob(repo, damaged.packBlobId), damaged, 5);
      await expect(verify(repository, { share: 1, signal: controller.signal })).rejects.toThrow(
        'canceled by shutdown',
      );
    }
    await using repository = await openTest(repo);
    const record = await loadVerification(repository);
    expect(record.position).toBeGreaterThan(0);
    expect(record.position).toBeLessThan(1);
    expect(record.damaged.has(damaged)).toBe(true);
  });

  it('goes over the index in parts where it is long', async () => {
    const repo = copy();
    await using repository = await openTest(repo);
    damageFile(repository, repo, 7);
    const found: string[] = [];
    const counters = { contents: 0, packs: 0, bytesRead: 0 };
    const share = await verifyContents(repository, {
      readAll: true,
      counters,
      entriesMax: 5,
      signal: new AbortController().signal,
      onProblem: ({ contentId }) => found.push(contentId),
    });
    expect(share).toBe(1);
    expect(found).toEqual([files(repository)[7]?.contentId]);
    expect(counters.bytesRead).toBeGreaterThan(FILES * 20_000);
  });
});

describe('the record of what is damaged', () => {
  it('keeps what another client has recorded meanwhile', async () => {
    const repo = copy();
    const clock = new OffsetClock(systemClock);
    let recorded: Promise<IndexEntry> | undefined;
    let reads = 0;
    const recordElsewhere = async (): Promise<IndexEntry> => {
      await using other = await openTest(repo);
      const [entry] = files(other) as [IndexEntry];
      const damaged = new DamagedContents();
      damaged.add(entry);
      const before = await loadVerification(other);
      putVerification(other, before, { damaged, position: undefined });
      await other.flush();
      return entry;
    };
    {
      await using repository = await openTest(repo, {
        clock,
        wrap: (storage) =>
          faulty(storage, async ({ operation, id, when }) => {
            if (operation !== 'get' || when !== 'before' || !id.startsWith('p')) return;
            await (recorded ??= recordElsewhere());
            // Findings are recorded in between, and once more at the end.
            if (++reads !== 6) return;
            await repository.contents.refresh();
            clock.offsetNs += HOUR_NS / 3n;
          }),
      });
      expect((await verify(repository, { share: 0.99 })).record).toBe('written');
    }
    expect(reads).toBeGreaterThan(6);
    const entry = await recorded;
    await using repository = await openTest(repo);
    const { damaged, position } = await loadVerification(repository);
    expect(damaged.has(entry as IndexEntry)).toBe(true);
    expect(position).toBeCloseTo(0.99);
  });

  it.each([
    new CodedError('STORAGE_FAILED', 'the blob is archived'),
    new RangeError('Array buffer allocation failed'),
    Object.assign(new Error('EMFILE: too many open files'), { code: 'EMFILE' }),
  ])('has nothing of what could not be read: $message', async (failure) => {
    const repo = copy();
    let known: IndexEntry;
    {
      await using repository = await openTest(repo);
      known = damageFile(repository, repo, 2);
      expect((await verify(repository, { readAll: true })).damagedContents).toBe(1);
    }
    await using repository = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, ({ operation, id, when }) => {
          if (operation === 'get' && when === 'before' && id.startsWith('p')) throw failure;
        }),
    });
    const { problems, damagedContents, record } = await verify(repository, { readAll: true });
    expect(new Set(problems.held.map(({ code }) => code))).toEqual(new Set(['UNREADABLE_CONTENT']));
    expect(problems.held[0]?.message).toContain('could not be read');
    expect(problems.held[0]?.message).toContain(failure.message);
    // Earlier findings stay.
    expect([damagedContents, record]).toEqual([1, 'unchanged']);
    const { damaged } = await loadVerification(repository);
    expect([...damaged.packs()]).toEqual([[known.packBlobId, [known.contentId]]]);
  });

  it('names the pack that was read, also where an index names another by now', async () => {
    const repo = copy();
    let isMoved = false;
    const moving: IndexEntry[] = [];
    await using repository = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, async ({ operation, id, when }) => {
          if (operation !== 'get' || when !== 'before' || isMoved) return;
          const [first] = moving;
          if (!first || id !== first.packBlobId) return;
          isMoved = true;
          await using other = await openTest(repo);
          other.contents.damaged.add(first);
          await backUp(other, tree);
          await repository.contents.refresh();
        }),
    });
    const first = damageFile(repository, repo);
    moving.push(first);
    expect((await verify(repository, { readAll: true })).damagedContents).toBe(0);
    expect(isMoved).toBe(true);
    const { packBlobId } = repository.contents.findOrThrow(first.contentId);
    expect(packBlobId).not.toBe(first.packBlobId);
    expect((await loadVerification(repository)).damaged.has({ ...first, packBlobId })).toBe(false);
  });

  it('writes nothing where nothing is damaged, and costs the next backup no request', async () => {
    const repo = copy();
    const requests: string[] = [];
    const count = async (): Promise<string[]> => {
      requests.length = 0;
      await using repository = await openTest(repo, {
        wrap: (storage) =>
          faulty(
            storage,
            ({ operation, id }) => void requests.push(`${operation} ${id.charAt(0)}`),
          ),
      });
      await backUp(repository, tree);
      return [...requests];
    };
    const before = await count();
    {
      await using repository = await openTest(repo);
      expect((await verify(repository, { readAll: true })).record).toBe('unchanged');
    }
    expect(before.filter((request) => /^list [pq]/.test(request))).toEqual([]);
    expect((await count()).filter((request) => /^list [pq]/.test(request))).toEqual([]);
  });

  it('is not written where nobody wants it, or where the storage takes nothing', async () => {
    const repo = copy();
    let isReadOnly = false;
    await using repository = await openTest(repo, {
      wrap: (storage) =>
        faulty(storage, ({ operation }) => {
          if (isReadOnly && operation === 'put') throw new Error('read-only');
        }),
    });
    damageFile(repository, repo);
    expect((await verify(repository, { readAll: true, record: false })).record).toBe('off');
    isReadOnly = true;
    const logger = recordingLogger();
    expect((await verify(repository, { readAll: true, logger })).record).toBe('failed');
    expect(logger.messages.join()).toMatch(/could not be recorded/);
  });

  it('survives maintenance, which it does not keep from the rest, and goes once all is stored again', async () => {
    const repo = copy();
    const clock = new OffsetClock(systemClock);
    const options = { clock, wrap: atClock(repo, clock) };
    let damaged: IndexEntry;
    {
      await using repository = await openTest(repo, options);
      damaged = damageFile(repository, repo);
      await verify(repository, { readAll: true });
    }
    clock.offsetNs += 25n * HOUR_NS;
    {
      await using repository = await openTest(repo, options);
      await runMaintenance(repository, {
        mode: 'full',
        safety: 'full',
        force: false,
        dryRun: false,
        signal: new AbortController().signal,
        logger: silentLogger,
        collectGarbage: planGarbageCollection,
      });
    }
    if (hasKopia) {
      const kopia = new Kopia(PASSWORD).connect(repo);
      expect(kopia.run('manifest', 'list')).toContain('longshore-verification');
      // Kopia fails at the damaged pack, after its garbage collection.
      expect(() => kopia.run('maintenance', 'run', '--full', '--safety=none')).toThrow('rewrite');
      expect(kopia.run('manifest', 'list')).toContain('longshore-verification');
    }
    await using repository = await openTest(repo, options);
    expect((await loadVerification(repository)).damaged.has(damaged)).toBe(true);
    await backUp(repository, tree);
    // A different client may still bring the damaged place back. Only a verification removes it
    // from the list.
    expect((await loadVerification(repository)).damaged.has(damaged)).toBe(true);
    const after = await verify(repository, { readAll: true });
    expect(after.problems.held).toEqual([]);
    expect((await loadVerification(repository)).ids).toEqual([]);
    if (hasKopia) {
      const kopia = new Kopia(PASSWORD).connect(repo);
      expect(kopia.run('manifest', 'list')).not.toContain('longshore-verification');
    }
  });

  it('holds so much and no more; with more, the backup itself looks which packs are there', async () => {
    const damaged = new DamagedContents();
    for (let i = 0; i < 300; i++) {
      damaged.add({ packBlobId: 'p1', contentId: `${i}` as IndexEntry['contentId'] });
    }
    expect([...damaged.packs()]).toEqual([['p1', []]]);
    for (let i = 0; i < 20_000; i++) damaged.addPack(`q${i}`);
    expect(damaged.packCount).toBe(10_000);
    expect(damaged.hasMore).toBe(true);
    const repo = copy();
    const lost: IndexEntry[] = [];
    {
      await using repository = await openTest(repo);
      for (const at of [1, 5, 9]) {
        const entry = files(repository)[at] as IndexEntry;
        lost.push(entry);
      }
      // Two of them may be in one pack.
      for (const id of new Set(lost.map(({ packBlobId }) => packBlobId))) {
        fs.rmSync(pathOfBlob(repo, id));
      }
      const more = new DamagedContents();
      more.addMore();
      putVerification(repository, await loadVerification(repository), {
        damaged: more,
        position: undefined,
      });
      await repository.flush();
    }
    await using repository = await openTest(repo);
    await backUp(repository, tree);
    for (const { contentId, packBlobId } of lost) {
      expect(repository.contents.find(contentId)?.packBlobId).not.toBe(packBlobId);
    }
    expect((await verify(repository)).damagedContents).toBe(0);
  });

  it('lets two backups at once store the same again, and the snapshots of both are whole', async () => {
    const repo = copy();
    {
      await using repository = await openTest(repo);
      damageFile(repository, repo, 2);
      await verify(repository, { readAll: true });
    }
    await using one = await openTest(repo);
    await using two = await openTest(repo);
    await Promise.all([backUp(one, tree), backUp(two, tree)]);
    await using repository = await openTest(repo);
    expect((await verify(repository, { readAll: true })).damagedContents).toBe(0);
    for (const { rootEntry } of (await listSnapshots(repository)).slice(-2)) {
      if (rootEntry) await restore(repository, rootEntry, join(work, `restored-${copies++}`));
    }
  });
});

describe('a backup that comes across damage by itself', () => {
  it('relies on nothing else of a pack that it finds missing', async () => {
    const repo = join(work, 'large');
    const large = join(work, 'large-tree');
    await createTest(repo, { splitter: 'FIXED-1M' });
    fs.mkdirSync(join(large, 'directory'), { recursive: true });
    fs.writeFileSync(join(large, 'big'), noise('big', 3_500_000));
    fs.writeFileSync(join(large, 'directory', 'small'), noise('small', 3000));
    age(large);
    {
      await using repository = await openTest(repo);
      const accept = (): Promise<void> => repository.contents.flush();
      await backUp(repository, large, { accept });
      fs.writeFileSync(join(large, 'another'), 'x');
      for (const path of [join(large, 'another'), large]) fs.utimesSync(path, 1e9, 1e9);
      // The root of this snapshot is in another place, so the list of pieces counts as stored
      // before the damage is seen.
      await backUp(repository, large, { accept });
      const [pieces] = repository.contents.entries({ prefix: 'x' });
      fs.rmSync(pathOfBlob(repo, pieces?.packBlobId ?? ''));
    }
    await using repository = await openTest(repo);
    const { rootEntry } = await backUp(repository, large);
    await restore(repository, rootEntry, join(work, 'large-restored'));
  });

  it('stores a directory again that it cannot read', async () => {
    const repo = copy();
    let id: string;
    {
      await using repository = await openTest(repo);
      const root = (await listSnapshots(repository)).at(-1)?.rootEntry?.objectId ?? '';
      id = root;
      const entry = repository.contents.find(root as unknown as IndexEntry['contentId']);
      if (!entry) throw new Error('no root');
      flip(pathOfBlob(repo, entry.packBlobId), entry, 10);
    }
    await using repository = await openTest(repo);
    const { rootEntry } = await backUp(repository, tree);
    expect(rootEntry.objectId).toBe(id);
    expect((await verify(repository, { readAll: true })).problems.held).toEqual([]);
  });
});
