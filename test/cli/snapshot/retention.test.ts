import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';

const work = tempDirectory('retention');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const BIN = packagedProgram();
const PASSWORD = 'secret';
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const repo = ['--repo', at('repo'), '--client', 'me@here'];

function ok(...parameters: string[]): string {
  const { status, stdout, stderr } = spawnSync(BIN, [...parameters, ...repo], {
    env,
    encoding: 'utf8',
  });
  expect(stderr).toBe('');
  expect(status).toBe(0);
  return stdout;
}

interface Created {
  id: string;
  removedByPolicy: { id: string; startTime: string; tags: Record<string, string> }[];
}
interface Listed {
  id: string;
  pins: string[];
  retentionReasons: string[] | null;
}

beforeAll(() => {
  fs.mkdirSync(at('tree'));
  fs.writeFileSync(at('tree/file'), 'content');
  ok('repository', 'create');
});

/** A policy of nothing but the newest. */
function keepOne(): void {
  const only = [
    '--keep-hourly',
    '--keep-daily',
    '--keep-weekly',
    '--keep-monthly',
    '--keep-annual',
  ];
  ok(
    'policy',
    'set',
    `me@here:${at('tree')}`,
    '--keep-latest',
    '1',
    ...only.flatMap((f) => [f, '0']),
  );
}

it('snapshot create names what it removed by policy, and list what holds the rest', () => {
  const create = (...flags: string[]): Created =>
    JSON.parse(ok('snapshot', 'create', at('tree'), ...flags, '--json')) as Created;
  const first = [create('--tag', 'keep=please'), create(), create(), create()];
  expect(first.flatMap(({ removedByPolicy }) => removedByPolicy)).toEqual([]);
  const list = (): Listed[] => JSON.parse(ok('snapshot', 'list', '--json')) as Listed[];
  expect(list().map(({ retentionReasons }) => retentionReasons?.[0])).toEqual([
    'latest-4',
    'latest-3',
    'latest-2',
    'latest-1',
  ]);
  keepOne();
  const doomed = first.map(({ id }) => id);
  // Before they go, the list says that nothing holds them.
  expect(list().map(({ retentionReasons }) => retentionReasons)).toEqual([
    [],
    [],
    [],
    ['latest-1'],
  ]);
  const table = ok('snapshot', 'list').split('\n');
  expect(table[0]).toMatch(/ROOT +KEPT BY/);
  expect(table.find((line) => line.startsWith(doomed[0] ?? '-'))).toMatch(
    / nothing: it is removed after/,
  );
  expect(table.find((line) => line.startsWith(doomed[3] ?? '-'))).toMatch(/ latest-1$/);

  const text = ok('snapshot', 'create', at('tree'));
  expect(text).toMatch(/^ {2}removed 4 by policy:$/m);
  for (const id of doomed) expect(text).toContain(id);
  expect(text).toMatch(/keep=please/);
  const [left] = list();
  expect(left?.retentionReasons).toEqual(['latest-1']);

  const next = create();
  expect(next.removedByPolicy).toMatchObject([{ id: left?.id, tags: {} }]);
  expect(list().map(({ id }) => id)).toEqual([next.id]);
});

it.skipIf(!hasKopia)("pins hold, and the reasons are the real Kopia's", () => {
  const kopia = new Kopia(PASSWORD).connect(at('repo'), { username: 'me', hostname: 'here' });
  keepOne();
  const { id } = JSON.parse(ok('snapshot', 'create', at('tree'), '--json')) as Created;
  kopia.run('snapshot', 'pin', id, '--add', 'for-ever');
  const pinned = (JSON.parse(ok('snapshot', 'list', '--json')) as Listed[])[0];
  expect(pinned?.pins).toEqual(['for-ever']);
  ok('snapshot', 'create', at('tree'));
  const listed = JSON.parse(ok('snapshot', 'list', '--json')) as Listed[];
  expect(listed.map(({ retentionReasons }) => retentionReasons)).toEqual([[], ['latest-1']]);
  expect(ok('snapshot', 'list')).toMatch(/ pin for-ever$/m);
  const theirs = kopia.json<{ id: string; retentionReason?: string[] }[]>(
    'snapshot',
    'list',
    '--all',
  );
  expect(theirs.map(({ id: its, retentionReason }) => [its, retentionReason ?? []])).toEqual(
    listed.map(({ id: its, retentionReasons }) => [its, retentionReasons]),
  );
});
