import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { saveSnapshot } from '../../../src/snapshot/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('snapshot-names');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const repo = join(work, 'repo');
const mine = { host: 'testhost', userName: 'tester', path: '/mine' };
const theirs = { ...mine, path: '/theirs' };
const ids: string[] = [];

function run(...words: string[]): { code: number | null; out: string; err: string } {
  const all = ['snapshot', ...words, '--repo', repo, '--client', 'tester@testhost'];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

beforeAll(async () => {
  await createTest(repo);
  await using repository = await openTest(repo);
  for (const [text, source] of [
    ['one', mine],
    ['two', mine],
    ['other', theirs],
  ] as const) {
    const tree = join(work, text);
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), text);
    const { id, snapshot } = await backUp(repository, tree, { source });
    ids.push(id);
    if (text === 'two') saveSnapshot(repository, { ...snapshot, incomplete: 'checkpoint' });
  }
  await repository.flush();
});

const cat = (name: string, ...more: string[]): ReturnType<typeof run> => run('cat', name, ...more);

it('by the beginning of its ID', () => {
  expect(cat(`${ids[0]?.slice(0, 12)}/file`)).toMatchObject({ code: 0, out: 'one' });
  expect(cat(`${ids[0]?.slice(0, 3)}/file`), 'too short').toMatchObject({ code: 2 });
});

it('the latest that is complete of a source, and those before it', () => {
  expect(cat('latest/file', '--source', 'tester@testhost:/mine').out).toBe('two');
  expect(cat('latest/file', '--source', '/mine').out).toBe('two');
  expect(cat('latest~1/file', '--source', '/mine').out).toBe('one');
  expect(cat('latest~2/file', '--source', '/mine')).toMatchObject({
    code: 1,
    err: expect.stringContaining('complete snapshots of tester@testhost:/mine: 2') as string,
  });
});

it('of which source is asked where there are several', () => {
  const { code, err } = run('restore', 'latest', join(work, 'out'));
  expect([code, err]).toEqual([
    1,
    expect.stringMatching(/latest exists in \d+ sources.*tester@testhost:\/mine.*--source/),
  ]);
  expect(fs.existsSync(join(work, 'out'))).toBe(false);
});

it('several are deleted together, or none where a name is wrong', () => {
  const [first = '', second = '', other = ''] = ids;
  expect(run('delete', 'latest')).toMatchObject({
    code: 2,
    err: expect.stringContaining('use the ID of the snapshot') as string,
  });
  expect(run('delete', other, 'feedfeed').code).toBe(1);
  expect(run('show', other).code, 'still there').toBe(0);
  const deleted = run('delete', first.slice(0, 16), second, other, '--json');
  expect(JSON.parse(deleted.out)).toEqual({ deleted: [first, second, other] });
  expect(run('list', '--json').out.trim()).toBe('[]');
});
