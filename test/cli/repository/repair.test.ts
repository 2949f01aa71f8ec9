import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { runHere, type Ran } from '../../support/command-line.ts';
import { pathOfBlob } from '../../support/damage.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../../support/repositories.ts';

const work = tempDirectory('repository-repair');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const password = join(work, 'password');
fs.writeFileSync(password, PASSWORD);

const at = (repo: string, ...words: string[]): Promise<Ran> =>
  runHere(...words, '--repo', repo, '--client', 'tester@testhost', '--password-file', password);

const blobsIn = (repo: string): string[] =>
  fs
    .readdirSync(repo, { recursive: true })
    .map(String)
    .filter((name) => name.endsWith('.f'))
    .map((name) => name.replaceAll('/', '').slice(0, -2))
    .sort();

async function twoBackups(
  name: string,
): Promise<{ repo: string; tree: string; ids: string[]; later: string[] }> {
  const [repo, tree] = [join(work, name, 'repo'), join(work, name, 'tree')];
  fs.mkdirSync(tree, { recursive: true });
  await createTest(repo);
  await using repository = await openTest(repo);
  const ids: string[] = [];
  let before: string[] = [];
  for (const text of ['first', 'second']) {
    before = blobsIn(repo);
    fs.writeFileSync(join(tree, 'file'), text);
    ids.push((await backUp(repository, tree)).id);
  }
  return { repo, tree, ids, later: blobsIn(repo).filter((id) => !before.includes(id)) };
}

it.each(['xn', 'q'])(
  'verbs that read tell of a damaged %s blob with exit status 3, and repair ends it',
  async (kind) => {
    const { repo, tree, ids, later } = await twoBackups(kind);
    const blob = later.find((id) => id.startsWith(kind)) ?? '';
    if (kind === 'xn') fs.writeFileSync(pathOfBlob(repo, blob), '');
    else fs.rmSync(pathOfBlob(repo, blob));
    const [first = ''] = ids;
    const list = await at(repo, 'snapshot', 'list', '--quiet');
    expect(list).toMatchObject({ code: 3, out: `${first}\n` });
    expect(list.err).toContain(blob);
    expect(list.err).toContain('repository repair');
    const target = join(work, kind, 'restored');
    for (const words of [
      ['snapshot', 'ls', first],
      ['snapshot', 'verify', first],
      ['snapshot', 'restore', first, target],
      ['repository', 'status'],
    ]) {
      const ran = await at(repo, ...words);
      expect(ran.code, ran.err).toBe(3);
      expect(ran.err).toContain(blob);
    }
    expect(fs.readFileSync(join(target, 'file'), 'utf8')).toBe('first');
    // The missing snapshot may be the newest.
    const latest = await at(repo, 'snapshot', 'ls', 'latest');
    expect(latest.code).toBe(1);
    expect(latest.err).toContain('may be in that part');
    const before = blobsIn(repo);
    const refused = await at(repo, 'repository', 'maintain', '--mode', 'full', '--safety', 'none');
    expect(refused.code).toBe(1);
    expect(refused.err).toContain(blob);
    const dry = await at(repo, 'repository', 'repair', '--dry-run');
    expect(dry).toMatchObject({ code: 3, err: '' });
    expect(dry.out).toContain(blob);
    expect(blobsIn(repo)).toEqual(before);
    // Packs of this second may be younger than their listing.
    await sleep(1100);
    const created = await at(repo, 'snapshot', 'create', tree, '--quiet');
    expect(created.code).toBe(0);
    expect(created.err).toContain(blob);
    expect((await at(repo, 'repository', 'repair')).code).toBe(0);
    const after = await at(repo, 'snapshot', 'list', '--quiet');
    expect(after).toMatchObject({ code: 0, err: '' });
    expect(after.out).toContain(created.out.trim());
    expect(await at(repo, 'repository', 'repair')).toMatchObject({ code: 0, err: '' });
    const maintained = await at(repo, 'repository', 'maintain', '--mode', 'full');
    expect(maintained).toMatchObject({ code: 0, err: '' });
  },
);

it('foreign files in the directory of a repository change nothing', async () => {
  const { repo, ids, later } = await twoBackups('foreign');
  const index = pathOfBlob(repo, later.find((id) => id.startsWith('xn')) ?? '');
  const [folder, name] = [join(index, '..'), index.split('/').at(-1) ?? ''];
  fs.writeFileSync(join(folder, `._${name}`), Buffer.alloc(4096));
  fs.writeFileSync(join(folder, '.DS_Store'), 'x');
  fs.writeFileSync(join(folder, `~syncthing~${name}.tmp`), 'x');
  fs.writeFileSync(
    join(folder, name.replace('.f', '.sync-conflict-20260101-010101-AAAAAAA.f')),
    '',
  );
  fs.writeFileSync(join(folder, name.replace('.f', ' (conflicted copy).f')), 'x');
  fs.writeFileSync(join(folder, `${name}.1a2b3c4d.partial`), 'x');
  fs.cpSync(folder, `${folder} (1)`, { recursive: true });
  fs.mkdirSync(join(repo, 'lost+found'));
  fs.mkdirSync(join(folder, '@eaDir', name), { recursive: true });
  const list = await at(repo, 'snapshot', 'list', '--quiet');
  expect(list).toMatchObject({ code: 0, err: '', out: `${ids.join('\n')}\n` });
  expect(await at(repo, 'repository', 'verify', '--read-all')).toMatchObject({ code: 0 });
  expect(await at(repo, 'repository', 'maintain', '--mode', 'full')).toMatchObject({ code: 0 });
  expect(await at(repo, 'repository', 'repair')).toMatchObject({ code: 0 });
});
