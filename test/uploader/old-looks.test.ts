import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { OffsetClock, SECOND_NS, systemClock } from '../../src/base/index.ts';
import { walkTree } from '../../src/snapshot/index.ts';
import { gatedPool } from '../support/gated-pool.ts';
import { tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('old-looks');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** Backs up two directories. The second is read ahead while the first takes this long. */
async function backUpSlowly(
  name: string,
  seconds: bigint,
): Promise<{ looks: number; paths: string[]; errors: number }> {
  const tree = at(name);
  for (const directory of ['first', 'second'])
    fs.mkdirSync(join(tree, directory), { recursive: true });
  fs.writeFileSync(join(tree, 'second/old'), 'old');
  await createTest(at(`${name}-repo`));
  const clock = new OffsetClock(systemClock);
  let looks = 0;
  const takeLong = async (): Promise<void> => {
    while (looks === 0) await sleep(1);
    await sleep(10);
    fs.renameSync(join(tree, 'second/old'), join(tree, 'second/new'));
    clock.offsetNs += seconds * SECOND_NS;
  };
  const factory = gatedPool((method, [path]) => {
    if (method !== 'readDirectory') return undefined;
    if (path === join(tree, 'second')) looks++;
    return path === join(tree, 'first') ? takeLong() : undefined;
  });
  await using repository = await openTest(at(`${name}-repo`), { clock, factory });
  const { rootEntry, counters } = await backUp(repository, tree);
  const walked = await Array.fromAsync(walkTree(repository, rootEntry));
  return { looks, paths: walked.map(({ path }) => path), errors: counters.errors };
}

it('a directory that was looked at long before its turn is looked at again', async () => {
  const { looks, paths, errors } = await backUpSlowly('slow', 31n);
  expect(looks).toBe(2);
  expect(paths).toEqual(['', 'first', 'second', 'second/new']);
  expect(errors).toBe(0);
});

it('one whose turn comes soon is looked at once', async () => {
  const { looks } = await backUpSlowly('fast', 20n);
  expect(looks).toBe(1);
});
