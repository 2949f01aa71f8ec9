import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HOUR_NS, OffsetClock, silentLogger, systemClock } from '../../src/base/index.ts';
import { faulty } from '../../src/blob/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import {
  newTreeCounters,
  type VerificationReport,
  verifyRepository,
} from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';
import { age } from '../support/trees.ts';

const work = tempDirectory('verification-place');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const repo = join(work, 'repo');
const tree = join(work, 'tree');
const FILES = 12;

/** Many packs of one file each. */
beforeAll(async () => {
  await createTest(repo);
  await using repository = await openTest(repo);
  fs.mkdirSync(tree);
  for (let i = 0; i < FILES; i++) {
    fs.writeFileSync(join(tree, `file-${i}`), noise(`place-${i}`, 20_000));
    age(tree);
    await backUp(repository, tree, { accept: () => repository.contents.flush() });
  }
});

type Options = Partial<Parameters<typeof verifyRepository>[1]>;
const verify = (repository: Repository, options: Options): Promise<VerificationReport> =>
  verifyRepository(repository, {
    record: false,
    signal: new AbortController().signal,
    logger: silentLogger,
    counters: { contents: 0, packs: 0, bytesRead: 0 },
    treeCounters: newTreeCounters(),
    ...options,
  });

describe('where a verification by sample begins', () => {
  it('goes on from the place that it is given where nothing may be recorded', async () => {
    await using repository = await openTest(repo);
    const places: (number | undefined)[] = [];
    let position: number | undefined;
    for (let run = 0; run < 4; run++) {
      ({ position } = await verify(repository, { share: 0.25, position }));
      places.push(position);
    }
    expect(places.map((place) => place?.toFixed(2))).toEqual(['0.25', '0.50', '0.75', '0.00']);
  });

  it('reads at least one pack, however short its time is', async () => {
    const clock = new OffsetClock(systemClock);
    await using repository = await openTest(repo, {
      clock,
      // The index alone takes longer than there is time.
      wrap: (storage) =>
        faulty(storage, ({ operation, id }) => {
          if (operation === 'get' && id.startsWith('p')) clock.offsetNs += HOUR_NS;
        }),
    });
    const counters = { contents: 0, packs: 0, bytesRead: 0 };
    const { position, readShare } = await verify(repository, { share: 1, budgetNs: 0n, counters });
    expect(counters.bytesRead).toBeGreaterThan(0);
    expect(readShare).toBeGreaterThan(0);
    expect(position).toBeGreaterThan(0);
  });
});
