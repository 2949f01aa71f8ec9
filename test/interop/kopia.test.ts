import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, describe, expect, it } from 'vitest';
import { Secret, silentLogger } from '../../src/base/index.ts';
import { openStorage } from '../../src/blob/index.ts';
import {
  COMPRESSORS,
  ENCRYPTION_NAMES,
  HASH_NAMES,
  KOPIA_SPLITTER_NAMES,
} from '../../src/codec/index.ts';
import { changePassword, openRepository, runMaintenance } from '../../src/repository/index.ts';
import {
  DEFAULT_POLICY,
  listSnapshots,
  planGarbageCollection as collectGarbage,
  policySchema,
  putPolicy,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { assertSameTree, hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD, restore } from '../support/repositories.ts';
import { prng } from '../support/golden.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('interop');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const GLOBAL = { host: '', userName: '', path: '' };

interface Row {
  hash: string;
  encryption: string;
  splitter: string;
  compression: string;
  version: 1 | 2 | 3;
}

const VERSIONS = [1, 2, 3] as const;
const HASH_ENCRYPTION = HASH_NAMES.flatMap((hash) =>
  ENCRYPTION_NAMES.map((encryption) => ({ hash, encryption })),
);
const COMPRESSOR_NAMES = ['none', ...COMPRESSORS.map(({ name }) => name)];
const isWritten = (name: string): boolean =>
  name === 'none' ||
  COMPRESSORS.some((compressor) => compressor.name === name && compressor.compress);

const pick = <T>(list: readonly T[], i: number): T => list[i % list.length] as T;

/**
 * Every value, every pair of hash and encryption, of splitter and format, of compression and
 * format.
 */
function coveringRows(): Row[] {
  const each = Math.max(KOPIA_SPLITTER_NAMES.length, COMPRESSOR_NAMES.length);
  return VERSIONS.flatMap((version, v) =>
    Array.from({ length: each }, (_, i) => ({
      ...pick(HASH_ENCRYPTION, v * each + i),
      splitter: pick(KOPIA_SPLITTER_NAMES, i),
      compression: pick(COMPRESSOR_NAMES, i),
      version,
    })),
  );
}

/** A seeded sample of all combinations. */
function sampledRows(count: number): Row[] {
  const random = prng('interop rows', 10 * count);
  return Array.from({ length: count }, (_, i) => {
    const draw = (at: number): number => random.readUInt16BE(10 * i + 2 * at);
    return {
      ...pick(HASH_ENCRYPTION, draw(0)),
      splitter: pick(KOPIA_SPLITTER_NAMES, draw(1)),
      compression: pick(COMPRESSOR_NAMES, draw(2)),
      version: pick(VERSIONS, draw(3)),
    };
  });
}

const ROWS = process.env.SOAK === '1' ? sampledRows(300) : coveringRows();

/**
 * What both sides must find in a repository that holds one snapshot of the tree, made by the other.
 */
async function assertTheyReadOurs(
  row: Row,
  tree: string,
  repo: string,
  out: string,
): Promise<void> {
  const { compression, ...format } = row;
  await createTest(repo, format);
  await using repository = await openTest(repo);
  const compressed = { ...DEFAULT_POLICY, compression: { compressorName: compression } };
  await putPolicy(repository, GLOBAL, policySchema.parse(compressed));
  const { rootEntry } = await backUp(repository, tree);
  const kopia = new Kopia(PASSWORD).connect(repo);
  kopia.verifyAll();
  kopia.run('snapshot', 'restore', rootEntry.objectId, out);
  assertSameTree(tree, out);
  // The same tree by Kopia into the same repository: it finds all contents there.
  fs.utimesSync(join(tree, 'README'), 1, 1);
  const theirs = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', tree);
  await repository.contents.refresh();
  repository.manifests.invalidate();
  const again = await backUp(repository, tree);
  expect(again.rootEntry.objectId).toBe(theirs.rootEntry.obj);
  expect(again.counters.contentsNew).toBe(0);
  kopia.run('maintenance', 'run', '--full');
}

async function assertWeReadTheirs(
  row: Row,
  tree: string,
  repo: string,
  out: string,
): Promise<void> {
  const kopia = new Kopia(PASSWORD).create(
    repo,
    `--block-hash=${row.hash}`,
    `--encryption=${row.encryption}`,
    `--object-splitter=${row.splitter}`,
    `--format-version=${row.version}`,
  );
  kopia.run('policy', 'set', '--global', `--compression=${row.compression}`);
  const theirs = kopia.json<{ id: string; rootEntry: { obj: string } }>('snapshot', 'create', tree);
  await using repository = await openTest(repo);
  const snapshot = (await listSnapshots(repository)).find(({ id }) => id === theirs.id);
  if (!snapshot?.rootEntry) throw new Error('their snapshot is not listed');
  await restore(repository, snapshot.rootEntry, out);
  assertSameTree(tree, out);
  const options = { readAll: true, signal: new AbortController().signal };
  expect((await verifyTrees(repository, [snapshot.rootEntry], options)).problems).toEqual([]);
  if (isWritten(row.compression)) {
    fs.utimesSync(join(tree, 'README'), 2, 2);
    const ours = await backUp(repository, tree);
    expect(ours.counters.contentsNew).toBe(0);
    const again = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', tree);
    expect(ours.rootEntry.objectId).toBe(again.rootEntry.obj);
  }
  await runMaintenance(repository, {
    mode: 'full',
    safety: 'none',
    force: true,
    dryRun: false,
    signal: options.signal,
    logger: silentLogger,
    collectGarbage,
  });
  kopia.verifyAll();
}

describe.skipIf(!hasKopia)('the real Kopia', () => {
  const tree = at('tree');
  makeTree(tree, 'interop');

  it.for(ROWS.map((row, i) => ({ ...row, i })).filter((row) => isWritten(row.compression)))(
    'reads what we write: $hash $encryption $splitter $compression v$version',
    async ({ i, ...row }) => {
      const [repo, out] = [at(`ours-${i}`), at(`ours-out-${i}`)];
      await assertTheyReadOurs(row, tree, repo, out);
      for (const path of [repo, out]) fs.rmSync(path, { recursive: true });
    },
  );

  it.for(ROWS.map((row, i) => ({ ...row, i })))(
    'writes what we read: $hash $encryption $splitter $compression v$version',
    async ({ i, ...row }) => {
      const [repo, out] = [at(`theirs-${i}`), at(`theirs-out-${i}`)];
      await assertWeReadTheirs(row, tree, repo, out);
      for (const path of [repo, out]) fs.rmSync(path, { recursive: true });
    },
  );

  it('opens a repository whose password we changed, and we one whose password it changed', async () => {
    const repo = at('password');
    await createTest(repo);
    {
      await using storage = await openStorage(repo);
      await using repository = await openTest(repo);
      await changePassword(storage, repository.format, new Secret('second'));
    }
    const kopia = new Kopia('second').connect(repo);
    kopia.run('repository', 'change-password', '--new-password=third');
    await using storage = await openStorage(repo);
    const client = { username: 'tester', hostname: 'testhost' };
    await expect(openTest(repo)).rejects.toMatchObject({ code: 'WRONG_PASSWORD' });
    await using repository = await openRepository({
      storage,
      password: new Secret('third'),
      client,
    });
    expect(await listSnapshots(repository)).toEqual([]);
  });

  it('reads what it would not compress itself, and a policy that it wrote is ours', async () => {
    const repo = at('s2');
    const kopia = new Kopia(PASSWORD).create(repo);
    kopia.run('policy', 'set', '--global', '--compression=s2-default', '--keep-latest=3');
    const theirs = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', tree);
    await using repository = await openTest(repo);
    const { rootEntry, counters } = await backUp(repository, tree);
    expect(rootEntry.objectId).toBe(theirs.rootEntry.obj);
    expect(counters).toMatchObject({ contentsNew: 0, bytesRead: 0 });
    for (let i = 0; i < 3; i++) await backUp(repository, tree);
    expect(await listSnapshots(repository)).toHaveLength(3);
    await restore(repository, rootEntry, at('s2-out'));
    assertSameTree(tree, at('s2-out'));
  });

  it('and we write at once without losing anything', async () => {
    const [repo, other] = [at('both'), at('other')];
    makeTree(other, 'other');
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    const kopia = new Kopia(PASSWORD).connect(repo);
    for (let round = 0; round < 3; round++) {
      fs.writeFileSync(join(tree, 'round'), `ours ${round}`);
      fs.writeFileSync(join(other, 'round'), `theirs ${round}`);
      const [command, parameters, options] = kopia.command('snapshot', 'create', other);
      const theirs = promisify(execFile)(command, parameters, options);
      await Promise.all([theirs, backUp(repository, tree)]);
    }
    kopia.verifyAll();
    await repository.contents.refresh();
    repository.manifests.invalidate();
    const snapshots = await listSnapshots(repository);
    expect(snapshots.filter(({ source }) => source.path === tree)).toHaveLength(3);
    expect(snapshots.filter(({ source }) => source.path === other)).toHaveLength(3);
  });

  it('opens a large file that we cut in parts above 2 GiB at the same places', async () => {
    const repo = at('parts');
    const big = at('parts-tree');
    fs.mkdirSync(big);
    const kopia = new Kopia(PASSWORD).create(repo);
    // Parts of 5 MB stand for those of 2 GiB.
    kopia.run('policy', 'set', '--global', '--parallel-upload-above-size-mib=5');
    fs.writeFileSync(join(big, 'file'), fs.readFileSync(process.execPath).subarray(0, 23_000_000));
    const theirs = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', big);
    await using repository = await openTest(repo);
    fs.utimesSync(join(big, 'file'), 5, 5);
    const touched = await backUp(repository, big);
    expect(touched.counters).toMatchObject({ contentsNew: 0, files: 1 });
    const again = kopia.json<{ rootEntry: { obj: string } }>('snapshot', 'create', big);
    expect(again.rootEntry.obj).toBe(touched.rootEntry.objectId);
    expect(again.rootEntry.obj).not.toBe(theirs.rootEntry.obj);
  });
});
