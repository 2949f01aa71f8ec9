import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { tempDirectory } from '../../support/kopia.ts';
import { packagedProgram } from '../../support/package.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('damaged-snapshot');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BIN = packagedProgram();
const env = { ...process.env, LONGSHORE_PASSWORD: PASSWORD, NO_COLOR: '1' };
const [repo, tree] = [join(work, 'repo'), join(work, 'tree')];
const source = 'tester@testhost:' + tree;

function run(...parameters: string[]): { code: number | null; out: string; err: string } {
  const all = [...parameters, '--repo', repo, '--client', 'tester@testhost'];
  const { status, stdout, stderr } = spawnSync(BIN, all, { env, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

let whole: string;
let damaged: string;
beforeAll(async () => {
  fs.mkdirSync(tree);
  fs.writeFileSync(join(tree, 'file'), 'content');
  await createTest(repo);
  await using repository = await openTest(repo);
  whole = (await backUp(repository, tree)).id;
  const labels = { type: 'snapshot', username: 'tester', hostname: 'testhost', path: tree };
  damaged = repository.manifests.put(labels, { startTime: 'yesterday' });
  await repository.flush();
});

it('a damaged manifest is named, the other snapshots can be used, and it can be deleted', () => {
  const list = run('snapshot', 'list', '--json');
  expect(list.code).toBe(3);
  expect(list.err).toContain(`the manifest of snapshot ${damaged} is damaged`);
  expect((JSON.parse(list.out) as { id: string }[]).map(({ id }) => id)).toEqual([whole]);
  expect(run('snapshot', 'show', whole)).toMatchObject({ code: 0, err: '' });
  const shown = run('snapshot', 'show', damaged);
  expect(shown.code).toBe(1);
  expect(shown.err).toContain('is damaged');
  // The damaged snapshot is later than all readable snapshots, so it may be the latest.
  for (const name of ['latest', 'latest~1']) {
    const latest = run('snapshot', 'cat', `${name}/file`, '--source', source);
    expect(latest).toMatchObject({ code: 1, out: '', err: shown.err });
  }
  expect(run('repository', 'status').out).toMatch(/1, and 1 with a damaged manifest/);
  const verified = run('repository', 'verify');
  expect(verified.code).toBe(1);
  expect(verified.err).toContain(damaged);

  const created = run('snapshot', 'create', tree, '--source', source);
  expect(created.code).toBe(0);
  expect(created.err).toContain(damaged);
  // Now it is one of those before.
  expect(run('snapshot', 'cat', 'latest/file', '--source', source).out).toBe('content');
  expect(run('snapshot', 'cat', 'latest~1/file', '--source', source).code).toBe(1);

  const refused = run('repository', 'maintain', '--mode', 'full');
  expect(refused.code).toBe(1);
  expect(refused.err).toContain(`longshore snapshot delete ${damaged}`);

  const deleted = run('snapshot', 'delete', damaged);
  expect(deleted.out).toContain(`deleted ${damaged} of ${source}: its manifest was damaged`);
  expect(deleted).toMatchObject({ code: 0, err: '' });
  expect(run('snapshot', 'list')).toMatchObject({ code: 0, err: '' });
  expect(run('repository', 'maintain', '--mode', 'full')).toMatchObject({ code: 0, err: '' });
});
