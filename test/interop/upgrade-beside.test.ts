import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { listSnapshots } from '../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, PASSWORD } from '../support/repositories.ts';

const work = tempDirectory('upgrade-beside');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

it.skipIf(!hasKopia)(
  'a backup beside which the real Kopia upgrades format 1 does not succeed unseen',
  async () => {
    const repo = join(work, 'repo');
    const tree = join(work, 'tree');
    await createTest(repo, { version: 1 });
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'before'), 'before the upgrade');
    {
      await using repository = await openTest(repo);
      const first = await backUp(repository, tree);
      new Kopia(PASSWORD).connect(repo).run('repository', 'set-parameters', '--upgrade');
      fs.writeFileSync(join(tree, 'after'), 'after the upgrade');
      await expect(backUp(repository, tree)).rejects.toMatchObject({ code: 'REPOSITORY_UPGRADED' });
      await using again = await openTest(repo);
      expect((await listSnapshots(again)).map(({ id }) => id)).toEqual([first.id]);
    }
    await using again = await openTest(repo);
    await backUp(again, tree);
    expect(await listSnapshots(again)).toHaveLength(2);
    new Kopia(PASSWORD).connect(repo).verifyAll();
  },
);
