import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { SECOND_NS } from '../../src/base/index.ts';
import { FROZEN_TAG, readTimeOf, tellsChanges } from '../../src/uploader/previous-entries.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('same-time');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

const START_NS = 1_000n * SECOND_NS + 500_000_000n;
const MS = 1_000_000n;

describe('a time of a file tells of later changes', () => {
  it.each([
    ['long before the snapshot began', START_NS - 3_600n * SECOND_NS, true],
    ['one tick of the kernel before', START_NS - 10n * MS, false],
    ['a little more than a tick before', START_NS - 11n * MS, true],
    ['as it began', START_NS, false],
    ['while it was made', START_NS + SECOND_NS, false],
    ['a whole second, within two of the beginning', 999n * SECOND_NS, false],
    ['a whole second, more than two before', 998n * SECOND_NS, true],
    ['in an hour, as a clock has it that is ahead', START_NS + 3_600n * SECOND_NS, false],
    ['in two days, which somebody set', START_NS + 48n * 3_600n * SECOND_NS, true],
  ])('%s: %s ns, %s', (_what, mtimeNs, expected) => {
    expect(tellsChanges(mtimeNs, { startNs: START_NS, endNs: START_NS + SECOND_NS })).toBe(
      expected,
    );
  });

  it.each([
    ['of a snapshot that says nothing', undefined, 500n],
    ['of one whose source stood still before it began', '300', 300n],
    ['of one that is said to have stood still after that', '600', 500n],
    ['of one that says what nobody can read', 'yesterday', 500n],
  ])('since the beginning %s', (_what, frozen, startNs) => {
    const tags = frozen === undefined ? undefined : { [FROZEN_TAG]: frozen };
    expect(readTimeOf({ startTimeNs: 500n, endTimeNs: 700n, tags })).toEqual({
      startNs,
      endNs: 700n,
    });
  });
});

/** Changes a file; its size and time stay, as those of a file that changes twice within one tick of the clock. */
function changeUnseen(path: string): void {
  const { mtime, size } = fs.statSync(path);
  fs.writeFileSync(path, 'B'.repeat(size));
  fs.utimesSync(path, mtime, mtime);
}

describe.each([
  ['compared by threads', {}],
  ['entry by entry', { listingEntriesMax: 4 }],
])('a file that changes within the tick of the clock in which it was read, %s', (how, options) => {
  const [repo, tree, file] = [
    at(`repo ${how}`),
    at(`tree ${how}`),
    at(`tree ${how}/below/deep/file`),
  ];

  it('is read again by the next backup', async () => {
    fs.mkdirSync(join(tree, 'below/deep'), { recursive: true });
    fs.mkdirSync(join(tree, 'beside'));
    const old = new Date(Date.now() - 3_600_000);
    for (let i = 0; i < 6; i++) {
      for (const directory of ['below', 'below/deep', 'beside']) {
        fs.writeFileSync(join(tree, directory, `old-${i}`), `${directory} ${i}`);
        fs.utimesSync(join(tree, directory, `old-${i}`), old, old);
      }
    }
    fs.writeFileSync(file, 'AAAA');
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    // While the backup runs: whatever is written then may have the same time.
    const soon = new Date(Date.now() + 20);
    fs.utimesSync(file, soon, soon);
    const link = join(tree, 'below/deep/link');
    fs.symlinkSync('gen-1', link);
    fs.lutimesSync(link, soon, soon);
    expect((await backUp(repository, tree, options)).counters).toMatchObject({ files: 19 });
    changeUnseen(file);
    fs.rmSync(link);
    fs.symlinkSync('gen-2', link);
    fs.lutimesSync(link, soon, soon);
    const second = await backUp(repository, tree, options);
    // It alone.
    expect(second.counters).toMatchObject({ files: 1, cachedFiles: 18 });
    await restore(repository, second.rootEntry, at(`out ${how}`));
    assertSameTree(tree, at(`out ${how}`));
    // A snapshot that began later has read what is there.
    const third = await backUp(repository, tree, options);
    expect(third.counters).toMatchObject({ files: 0, cachedFiles: 19 });
    expect(third.rootEntry.objectId).toBe(second.rootEntry.objectId);
  });
});

describe('files that a snapshot of the storage holds as they were', () => {
  const [repo, tree] = [at('repo frozen'), at('tree frozen')];

  it('are read again when they changed within the tick in which it was taken, long before the backup began', async () => {
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), 'AAAA');
    fs.writeFileSync(join(tree, 'older'), 'of before');
    const taken = new Date(Date.now() - 600_000.25);
    fs.utimesSync(join(tree, 'file'), taken, taken);
    fs.utimesSync(join(tree, 'older'), new Date(0), new Date(0));
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    const frozenAtNs = BigInt(taken.getTime()) * MS;
    await backUp(repository, tree, { frozenAtNs });
    changeUnseen(join(tree, 'file'));
    const second = await backUp(repository, tree, { frozenAtNs: frozenAtNs + 60n * SECOND_NS });
    expect(second.counters).toMatchObject({ files: 1, cachedFiles: 1 });
    const third = await backUp(repository, tree, { frozenAtNs: frozenAtNs + 90n * SECOND_NS });
    expect(third.counters).toMatchObject({ files: 0, cachedFiles: 2 });
  });
});

describe('a directory in which times of whole seconds are beside finer ones', () => {
  const [repo, tree] = [at('repo mixed'), at('tree mixed')];

  it('is looked at entry by entry, within two seconds of what it holds', async () => {
    const below = join(tree, 'below');
    fs.mkdirSync(below, { recursive: true });
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    // The backup begins in the midst of a second, of which both times are.
    while (Date.now() % 1000 < 300 || Date.now() % 1000 > 700)
      await new Promise((resolve) => setTimeout(resolve, 20));
    const second = Math.floor(Date.now() / 1000);
    // Written by what keeps whole seconds, and may still do so in this one.
    fs.writeFileSync(join(below, 'coarse'), 'AAAA');
    fs.utimesSync(join(below, 'coarse'), second, second);
    fs.writeFileSync(join(below, 'finer'), 'of before');
    fs.utimesSync(join(below, 'finer'), second + 0.2, second + 0.2);
    for (const directory of [below, tree]) fs.utimesSync(directory, 0, 0);
    await backUp(repository, tree);
    changeUnseen(join(below, 'coarse'));
    expect((await backUp(repository, tree)).counters).toMatchObject({ files: 1, cachedFiles: 1 });
  });
});
