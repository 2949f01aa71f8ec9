import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import {
  type ContentId,
  type IndexEntry,
  type Repository,
  visitContents,
} from '../../src/repository/index.ts';
import {
  DEFAULT_POLICY,
  listSnapshots,
  newTreeCounters,
  type Policy,
  putPolicy,
  type Snapshot,
  type VerificationReport,
  verifyRepository,
  walkTree,
} from '../../src/snapshot/index.ts';
import { flip, numbers, packsOf, pathOfBlob } from '../support/damage.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
  restore,
} from '../support/repositories.ts';
import { age, makeTree } from '../support/trees.ts';

const work = tempDirectory('repair');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const { signal } = new AbortController();
const at = (name: string): string => join(work, name);

const FORMATS = [
  { name: 'default', format: { splitter: 'DYNAMIC-1M-BUZHASH' }, compressor: 'none' },
  {
    name: 'compressed',
    format: { encryption: 'CHACHA20-POLY1305-HMAC-SHA256', splitter: 'DYNAMIC-1M-BUZHASH' },
    compressor: 'zstd',
  },
  {
    name: 'version 2',
    format: { version: 2, hash: 'HMAC-SHA256-128', splitter: 'FIXED-1M' },
    compressor: 'none',
  },
  {
    name: 'long hashes',
    format: { hash: 'HMAC-SHA256', splitter: 'FIXED-1M' },
    compressor: 's2-default',
  },
  // Compresses before it hashes, and has no epochs.
  { name: 'version 1', format: { version: 1, splitter: 'FIXED-1M' }, compressor: 'zstd' },
] as const;
const SNAPSHOTS = 5;
const ROUNDS = 5;
/** All rounds of all formats together make 1,000. */
const DAMAGES = 40;

const verify = (repository: Repository): Promise<VerificationReport> =>
  verifyRepository(repository, {
    readAll: true,
    record: true,
    signal,
    logger: silentLogger,
    counters: { contents: 0, packs: 0, bytesRead: 0 },
    treeCounters: newTreeCounters(),
  });

const damagedIn = ({ problems }: VerificationReport): Set<string> =>
  new Set(problems.held.flatMap(({ contentId }) => contentId ?? []));

/** All that a snapshot needs. */
async function reached(repository: Repository, snapshot: Snapshot): Promise<Set<ContentId>> {
  const ids = new Set<ContentId>();
  if (!snapshot.rootEntry) return ids;
  for await (const { entry } of walkTree(repository, snapshot.rootEntry)) {
    await visitContents(repository.contents, entry.objectId, (id) => void ids.add(id));
  }
  return ids;
}

/**
 * Paths of files that a snapshot still gives: neither they nor a directory above them has a damaged
 * content.
 */
async function wholeFiles(
  repository: Repository,
  snapshots: readonly Snapshot[],
): Promise<(damaged: ReadonlySet<string>) => Set<string>> {
  const found: { path: string; isFile: boolean; ids: ContentId[] }[][] = [];
  for (const { rootEntry } of snapshots) {
    if (!rootEntry) continue;
    const entries = [];
    for await (const { path, entry } of walkTree(repository, rootEntry)) {
      if (entry.type !== 'f' && entry.type !== 'd') continue;
      const ids: ContentId[] = [];
      await visitContents(repository.contents, entry.objectId, (id) => void ids.push(id));
      entries.push({ path, isFile: entry.type === 'f', ids });
    }
    found.push(entries);
  }
  return (damaged) => {
    const files = new Set<string>();
    for (const entries of found) {
      const lost = new Set<string>();
      for (const { path, isFile, ids } of entries) {
        const above = path.includes('/') ? path.slice(0, path.lastIndexOf('/')) : '';
        if ((path !== '' && lost.has(above)) || ids.some((id) => damaged.has(id))) lost.add(path);
        else if (isFile) files.add(path);
      }
    }
    return files;
  };
}

/**
 * A volume that only grows, so that the files of all snapshots are on it; and a pack of directories
 * without manifests each.
 */
async function makeRepository(
  repo: string,
  tree: string,
  { format, compressor }: (typeof FORMATS)[number],
): Promise<Set<ContentId>> {
  makeTree(tree, repo, { bigBytes: 3_500_000 });
  age(tree);
  await createTest(repo, format);
  await using repository = await openTest(repo);
  await putPolicy(repository, { host: '', userName: '', path: '' }, {
    ...DEFAULT_POLICY,
    compression: { compressorName: compressor },
  } as Policy);
  for (let i = 0; i < SNAPSHOTS; i++) {
    for (let file = 0; file < 24; file++) {
      const path = join(tree, 'more', `${i}-${file % 3}`, `file-${file}`);
      fs.mkdirSync(join(path, '..'), { recursive: true });
      fs.writeFileSync(path, noise(`${i}-${file}`, 2000 + 2000 * file));
      age(path);
    }
    const accept = (): Promise<void> => repository.contents.flush();
    await backUp(repository, tree, { accept });
  }
  const newest = (await listSnapshots(repository)).at(-1);
  return await reached(repository, newest);
}

/** Damages a copy of a repository in so many ways; returns the contents that are damaged then. */
function damage(
  repository: Repository,
  repo: string,
  seed: string,
  isEligible: (id: ContentId) => boolean,
): Set<string> {
  const below = numbers(seed);
  const damaged = new Set<string>();
  let count = 0;
  const all = (entries: readonly IndexEntry[]): void => {
    for (const { contentId } of entries) damaged.add(contentId);
    count++;
  };
  const whole = [...packsOf(repository, isEligible)];
  const take = (): [string, IndexEntry[]] =>
    whole.splice(below(whole.length), 1)[0] as [string, IndexEntry[]];
  const [lost, lostEntries] = take();
  fs.rmSync(pathOfBlob(repo, lost));
  all(lostEntries);
  const [cut, cutEntries] = take();
  const end = cutEntries.reduce((sum, e) => Math.max(sum, e.packOffset + e.packedLength), 0);
  const keep = below(end);
  fs.truncateSync(pathOfBlob(repo, cut), keep);
  all(cutEntries.filter((e) => e.packOffset + e.packedLength > keep));
  const [replaced, replacedEntries] = take();
  const replacedPath = pathOfBlob(repo, replaced);
  fs.writeFileSync(replacedPath, noise(seed, fs.statSync(replacedPath).size));
  all(replacedEntries);
  const gone = new Set([lost, cut, replaced]);
  const entries = [...repository.contents.entries()].filter(
    (e) =>
      !e.deleted &&
      !gone.has(e.packBlobId) &&
      !e.contentId.startsWith('m') &&
      isEligible(e.contentId),
  );
  while (count < DAMAGES) {
    const [entry] = entries.splice(below(entries.length), 1);
    if (!entry) throw new Error(`only ${count} contents to damage`);
    flip(pathOfBlob(repo, entry.packBlobId), entry, below(1 << 30));
    damaged.add(entry.contentId);
    count++;
  }
  return damaged;
}

describe.each(FORMATS)('a repository of the format "$name"', (each) => {
  const base = at(`${each.name}-base`);
  const tree = at(`${each.name}-tree`);
  let newest: Set<ContentId>;
  beforeAll(async () => {
    newest = await makeRepository(base, tree, each);
  });

  it.each(Array.from({ length: ROUNDS }, (_, round) => round))(
    'is whole after the next backup, as far as its volume goes (seed %i)',
    async (round) => {
      // Two rounds damage only data of the newest snapshot, which the next backup can replace
      // completely.
      const isOfNewest = round < 2;
      const repo = at(`${each.name}-${round}`);
      fs.cpSync(base, repo, { recursive: true });
      let damaged: Set<string>;
      let whole: Set<string>;
      {
        await using repository = await openTest(repo);
        const isEligible = (id: ContentId): boolean => !isOfNewest || newest.has(id);
        const wholeWithout = await wholeFiles(repository, await listSnapshots(repository));
        damaged = damage(repository, repo, `${each.name} ${round}`, isEligible);
        whole = wholeWithout(damaged);
        const report = await verify(repository);
        expect([...damagedIn(report)].sort()).toEqual([...damaged].sort());
        expect(report.damagedContents).toBeGreaterThanOrEqual(damaged.size);
        expect(report.record).toBe('written');
        expect(report.concerned.damaged.length).toBeGreaterThan(0);
      }
      await using repository = await openTest(repo);
      const logger = recordingLogger();
      const { counters, rootEntry } = await backUp(repository, tree, { logger });
      expect(logger.messages).toContain('contents that were damaged are stored again');
      // Whole files are not read again, even below damaged directories: older snapshots have these
      // directories undamaged.
      if (isOfNewest) expect(counters.cachedFiles).toBe(whole.size);
      const after = await verify(repository);
      const left = damagedIn(after);
      const snapshots = await listSnapshots(repository);
      const needed = await reached(repository, snapshots.at(-1));
      expect([...left].filter((id) => needed.has(id as ContentId))).toEqual([]);
      const files = [...damaged].filter((id) => !/^[a-z]/.test(id) || id.startsWith('x'));
      expect(files.filter((id) => left.has(id))).toEqual([]);
      const target = `${repo}-restored`;
      await restore(repository, rootEntry, target);
      assertSameTree(tree, target);
      if (isOfNewest) {
        expect(after.problems.held).toEqual([]);
        expect(after.damagedContents).toBe(0);
        expect(after.concerned.damaged).toEqual([]);
        if (hasKopia && round === 0) new Kopia(PASSWORD).connect(repo).verifyAll();
      }
      for (const path of [repo, target]) fs.rmSync(path, { recursive: true });
    },
  );
});

describe('what a volume cannot make up for', () => {
  const prepare = async (name: string): Promise<{ repo: string; tree: string }> => {
    const [repo, tree] = [at(name), at(`${name}-tree`)];
    fs.mkdirSync(tree);
    await createTest(repo);
    await using repository = await openTest(repo);
    for (const file of ['a', 'b']) {
      fs.writeFileSync(join(tree, file), noise(file, 50_000));
      age(join(tree, file));
      await backUp(repository, tree, { accept: () => repository.contents.flush() });
    }
    return { repo, tree };
  };

  it('is a pack with a part of the list of snapshots: the message names it and what to do, and backups go on', async () => {
    const { repo, tree } = await prepare('manifests');
    let lost = '';
    {
      await using repository = await openTest(repo);
      const [entry] = repository.contents.entries({ prefix: 'm' });
      lost = entry?.packBlobId ?? '';
      fs.rmSync(pathOfBlob(repo, lost));
    }
    await using repository = await openTest(repo);
    const { problems, record } = await verify(repository);
    const texts = problems.held.map(({ message }) => message);
    const remedy = 'or run "longshore repository repair"';
    expect(texts.find((text) => text.includes(lost) && text.includes(remedy))).toBeDefined();
    expect(record).toBe('written');
    // A backup without the lost policies is better than none.
    const { rootEntry } = await backUp(repository, tree);
    expect(rootEntry.summary?.numFailed).toBe(0);
  });

  it('are no index blobs: what they named is stored again', async () => {
    const { repo, tree } = await prepare('index');
    const names = fs.readdirSync(repo, { recursive: true }).map(String);
    const plain = (name: string): string => name.replaceAll('/', '').replace(/\.f$/, '');
    const indexes = names.filter((name) => plain(name).startsWith('xn') && name.endsWith('.f'));
    {
      // That of the first backup's files and directories.
      await using repository = await openTest(repo);
      const first = (await listSnapshots(repository))[0]?.rootEntry?.objectId ?? '';
      for (const name of indexes) {
        const path = join(repo, name);
        const bytes = fs.readFileSync(path);
        fs.rmSync(path);
        await repository.contents.refresh();
        if (!repository.contents.has(first as unknown as ContentId)) break;
        fs.writeFileSync(path, bytes);
      }
    }
    {
      await using repository = await openTest(repo);
      const { problems, concerned } = await verify(repository);
      expect(problems.held.map(({ code }) => code)).toContain('DAMAGED_OBJECT');
      expect(problems.held[0]?.message).toContain('is not in the repository');
      expect(concerned.damaged.length).toBeGreaterThan(0);
      await backUp(repository, tree);
    }
    await using repository = await openTest(repo);
    const { rootEntry } = await backUp(repository, tree);
    const target = at('index-restored');
    await restore(repository, rootEntry, target);
    assertSameTree(tree, target);
  });
});
