import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { type Ran, runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('keep');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (...names: string[]): string => join(work, ...names);
const repo = at('repo');
vi.stubEnv('LONGSHORE_PASSWORD', PASSWORD);
const run = (...words: string[]): Promise<Ran> =>
  runHere(...words, '--repo', repo, '--client', 'tester@testhost');
const ids: string[] = [];
const source = { host: 'testhost', userName: 'tester', path: '/data' };
const listed = async (): Promise<string[]> =>
  (await run('snapshot', 'list', '--quiet')).out.trim().split('\n');

beforeAll(async () => {
  await createTest(repo);
  await using repository = await openTest(repo);
  for (const path of ['same/x', 'dir/gone', 'dir/changed', 'mode', 'type/inner']) {
    fs.mkdirSync(join(at('tree'), path, '..'), { recursive: true });
    fs.writeFileSync(at('tree', path), path);
  }
  ids.push((await backUp(repository, at('tree'), { source })).id);
  fs.rmSync(at('tree/dir/gone'));
  fs.writeFileSync(at('tree/dir/changed'), 'other words');
  fs.chmodSync(at('tree/mode'), 0o600);
  fs.rmSync(at('tree/type'), { recursive: true });
  fs.writeFileSync(at('tree/type'), 'a file now');
  fs.mkdirSync(at('tree/new'));
  fs.writeFileSync(at('tree/new/y'), 'y');
  ids.push((await backUp(repository, at('tree'), { source })).id);
  ids.push((await backUp(repository, at('tree'), { source })).id);
});

describe('snapshot diff', () => {
  it('tells what was added, removed and changed', async () => {
    const { code, out } = await run('snapshot', 'diff', 'latest~2', 'latest');
    const lines = out.trim().split('\n');
    expect([code, lines.pop()]).toEqual([
      0,
      '3 added, 3 removed, 1 changed, 1 with other attributes',
    ]);
    expect(lines.sort()).toEqual(
      [
        '+ new/',
        '+ new/y',
        '+ type',
        '- dir/gone',
        '- type/',
        '- type/inner',
        'M dir/changed',
        'U mode',
      ].sort(),
    );
    const { out: json } = await run('snapshot', 'diff', 'latest~2/dir', 'latest/dir', '--json');
    expect(JSON.parse(json)).toMatchObject([
      { change: 'changed', path: 'changed', before: { size: 11 }, after: { size: 11 } },
      { change: 'removed', path: 'gone', after: null },
    ]);
  });

  it('of what is the same is nothing', async () => {
    expect(await run('snapshot', 'diff', 'latest~1', 'latest', '--json')).toEqual({
      code: 0,
      out: '[]\n',
      err: '',
    });
    expect((await run('snapshot', 'diff', 'latest', 'feedfeed')).code).toBe(1);
  });
});

describe('pins', () => {
  const pinsOf = async (id = ''): Promise<unknown> =>
    (JSON.parse((await run('snapshot', 'show', id)).out) as { pins: string[] }).pins;

  it('are added and removed, and the snapshot keeps its ID and all else', async () => {
    const [first = '', second = ''] = ids;
    const { out: before } = await run('snapshot', 'show', first);
    expect((await run('snapshot', 'pin', first, second.slice(0, 12), '--name', 'audit')).code).toBe(
      0,
    );
    expect((await run('snapshot', 'pin', first)).out).toBe(`${first} is pinned (manual)\n`);
    expect((await run('snapshot', 'pin', first)).out).toBe(`${first} is pinned already (manual)\n`);
    expect(await pinsOf(first)).toEqual(['audit', 'manual']);
    expect(await pinsOf(second)).toEqual(['audit']);
    expect(await listed()).toEqual(ids);
    const { out } = await run('snapshot', 'unpin', first, second, '--name', 'audit', '--json');
    expect(JSON.parse(out)).toEqual({ changed: [first, second] });
    expect((await run('snapshot', 'unpin', first)).code).toBe(0);
    expect((await run('snapshot', 'show', first)).out).toBe(before);
  });

  it('of a name that is wrong change nothing', async () => {
    expect((await run('snapshot', 'pin', ids[0] ?? '', 'feedfeed')).code).toBe(1);
    expect((await run('snapshot', 'pin', ids[0] ?? '', '--name', ' ')).code).toBe(2);
    expect(await pinsOf(ids[0])).toEqual([]);
  });
});

describe('policy delete and snapshot expire', () => {
  it('remove what the policy no longer keeps, and a dry run only says so', async () => {
    const [first = '', second = '', third = ''] = ids;
    const none = [
      '--keep-hourly',
      '0',
      '--keep-daily',
      '0',
      '--keep-weekly',
      '0',
      '--keep-monthly',
      '0',
      '--keep-annual',
      '0',
    ];
    expect(
      (await run('policy', 'set', 'tester@testhost:/data', '--keep-latest', '1', ...none)).code,
    ).toBe(0);
    await run('snapshot', 'pin', first);
    const dry = await run('snapshot', 'expire', '--all', '--dry-run');
    expect(dry.out).toMatch(new RegExp(`^would remove ${second} of tester@testhost:/data, .*\\n$`));
    expect(await listed()).toEqual(ids);
    expect((await run('snapshot', 'expire', '--source', '/elsewhere')).out).toBe(
      'policies keep every snapshot\n',
    );
    expect((await run('snapshot', 'expire', '--source', '/data', '-q')).out).toBe(`${second}\n`);
    expect(await listed()).toEqual([first, third]);
    await run('snapshot', 'unpin', first);
    expect((await run('policy', 'delete', 'tester@testhost:/data')).code).toBe(0);
    expect((await run('policy', 'delete', 'tester@testhost:/data')).code).toBe(1);
    expect((await run('snapshot', 'expire', '--all')).out).toBe('policies keep every snapshot\n');
    expect(await listed()).toEqual([first, third]);
  });

  it('want to be told of which source', async () => {
    expect((await run('snapshot', 'expire')).code).toBe(2);
    expect((await run('snapshot', 'expire', '--all', '--source', '/data')).code).toBe(2);
  });
});
