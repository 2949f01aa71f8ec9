import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { expiredSnapshots, listSnapshots, loadPolicyTree } from '../../../src/snapshot/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import {
  backUp,
  CLIENT,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
} from '../../support/repositories.ts';

const work = tempDirectory('foreign-policies');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const [repo, tree] = [join(work, 'repo'), join(work, 'tree')];
const labelsOf = (path: string): Record<string, string> => ({
  type: 'policy',
  policyType: 'path',
  username: CLIENT.username,
  hostname: CLIENT.hostname,
  path,
});
const sourceOf = (path: string): { host: string; userName: string; path: string } => ({
  host: CLIENT.hostname,
  userName: CLIENT.username,
  path,
});

function run(...parameters: string[]): { code: number | null; out: string; err: string } {
  const all = [...parameters, '--repo', repo, '--client', 'tester@testhost'];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

beforeAll(async () => {
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), 'content');
  await createTest(repo);
  await using repository = await openTest(repo);
  repository.manifests.put(labelsOf('/broken'), { retention: 'many' });
  // As `kopia policy set --keep-latest=-1` writes it.
  repository.manifests.put(labelsOf('/negative'), { retention: { keepLatest: -1 } });
  // As `kopia policy set --parallel-upload-above-size-mib=-1` writes it: files are not split into
  // parts.
  repository.manifests.put(labelsOf('/whole'), { upload: { parallelUploadAboveSize: -1048576 } });
  // lz4 was a compression of Kopia's once; where a policy still names it, Kopia stores without.
  const dropped = { compression: { compressorName: 'lz4' }, splitter: { algorithm: 'LATER-4M' } };
  repository.manifests.put(labelsOf('/dropped'), dropped);
  // As `kopia policy set --before-snapshot-root-action=/usr/bin/dump` writes it.
  const dump = { path: '/usr/bin/dump', timeout: 300, mode: 'essential' };
  repository.manifests.put(labelsOf('/actions'), { actions: { beforeSnapshotRoot: dump } });
  await repository.flush();
});

describe('a policy that cannot be read', () => {
  it('concerns no other source', async () => {
    await using repository = await openTest(repo);
    const { removed } = await backUp(repository, tree);
    expect(removed).toEqual([]);
    await expect(loadPolicyTree(repository, sourceOf('/broke'))).resolves.toBeDefined();
  });

  it.each(['/broken', '/broken/below', '/'])('stops a backup that it is for: %s', async (path) => {
    await using repository = await openTest(repo);
    const backup = backUp(repository, tree, { source: sourceOf(path) });
    await expect(backup).rejects.toMatchObject({ code: 'DAMAGED_POLICY' });
    expect(await listSnapshots(repository, { source: sourceOf(path) })).toEqual([]);
  });

  it('is named beside the others, and can be set anew', () => {
    const list = run('policy', 'list');
    expect(list.code).toBe(3);
    expect(list.err).toMatch(
      /^longshore: the policy \w{32} for tester@testhost:\/broken is damaged/,
    );
    expect(list.out).toContain('tester@testhost:/negative');
    expect(run('snapshot', 'list').out).toContain('latest-1');
    expect(run('policy', 'set', 'tester@testhost:/broken', '--keep-daily', '1').code).toBe(1);
    const set = run('policy', 'set', 'tester@testhost:/broken', '--from-json', '{}');
    expect(set).toMatchObject({ code: 0, err: '' });
    expect(run('policy', 'list')).toMatchObject({ code: 0, err: '' });
  });
});

it('a size below zero, from which on files are split into parts, splits none', () => {
  fs.writeFileSync(join(tree, 'large'), Buffer.alloc(3 << 20, 'large'));
  const words = ['snapshot', 'create', tree, '--source', 'tester@testhost:/whole', '--json'];
  const options = { env, encoding: 'utf8', timeout: 30_000, killSignal: 'SIGKILL' } as const;
  const { status, stdout } = spawnSync(BIN, [...words, '--repo', repo], options);
  fs.rmSync(join(tree, 'large'));
  expect(status).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({ incomplete: null, stats: { files: 2 } });
});

describe('a number of snapshots to keep that is below zero', () => {
  it('is what Kopia stores, and keeps nothing by itself', async () => {
    await using repository = await openTest(repo);
    const source = sourceOf('/negative');
    const { root } = await loadPolicyTree(repository, source);
    expect(root.retention).toMatchObject({ keepLatest: -1, keepDaily: 7 });
    await backUp(repository, tree, { source });
    const snapshots = await listSnapshots(repository, { source });
    expect(expiredSnapshots(snapshots, root.retention)).toEqual([]);
    expect(expiredSnapshots(snapshots, { keepLatest: -1, keepDaily: 0 })).toEqual([]);
    expect(expiredSnapshots(snapshots, { keepLatest: -1, keepDaily: 1 })).toEqual([]);
  });

  it('is refused where it would be set', () => {
    const json = '{"retention":{"keepLatest":-1}}';
    const { code, err } = run('policy', 'set', 'tester@testhost:/other', '--from-json', json);
    expect([code, err]).toEqual([
      2,
      'longshore: retention.keepLatest is -1: the number of snapshots to keep must be 0 or more\n',
    ]);
  });
});

it('names that are not known of a compression and a splitter cost a warning, and no backup', async () => {
  fs.writeFileSync(join(tree, 'large'), Buffer.alloc(9 << 20, 'large'));
  await using repository = await openTest(repo);
  const logger = recordingLogger();
  const options = { source: sourceOf('/dropped'), logger };
  const { rootEntry } = await backUp(repository, tree, options);
  const plain = await backUp(repository, tree, { source: sourceOf('/plain') });
  fs.rmSync(join(tree, 'large'));
  expect(rootEntry.objectId).toBe(plain.rootEntry.objectId);
  expect(rootEntry.summary).toMatchObject({ files: 2, numFailed: 0 });
  expect(logger.messages).toEqual(
    expect.arrayContaining([
      "a policy names an unknown splitter; using the repository's",
      'a policy names an unknown compression; storing files uncompressed',
    ]),
  );
});

it('an action of Kopia, which makes something ready for a backup, is not left out without a word', () => {
  const text = 'warning: a policy has a Kopia action; it is not run action=beforeSnapshotRoot\n';
  const words = ['snapshot', 'create', tree, '--source'];
  expect(run(...words, 'tester@testhost:/actions')).toMatchObject({ code: 0, err: text });
  expect(run(...words, 'tester@testhost:/above')).toMatchObject({ code: 0, err: '' });
});
