import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it, vi } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('unwritten-directories');
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

it('a walk waits while a storage that takes nothing lets many directories wait', async () => {
  const DIRECTORIES = 5000;
  const tree = join(work, 'tree');
  for (let i = 0; i < DIRECTORIES; i++) {
    fs.mkdirSync(join(tree, `${i % 50}`, `${i}`), { recursive: true });
  }
  await createTest(join(work, 'repo'));
  await using repository = await openTest(join(work, 'repo'));
  const { contents } = repository;
  const write = contents.write.bind(contents);
  const many = Promise.withResolvers<undefined>();
  const taken = many.promise.then(() => sleep(1000));
  let waiting = 0;
  let most = 0;
  vi.spyOn(contents, 'write').mockImplementation(async (...content) => {
    most = Math.max(most, ++waiting);
    if (waiting === 2000) many.resolve(undefined);
    await taken;
    waiting--;
    return write(...content);
  });
  const { snapshot } = await backUp(repository, tree);
  expect(most).toBeLessThan(DIRECTORIES / 2);
  expect(snapshot.rootEntry?.summary).toMatchObject({ dirs: DIRECTORIES + 51 });
});
