import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { SECOND_NS } from '../../src/base/index.ts';
import { tellsChanges } from '../../src/uploader/previous-entries.ts';
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
    ['in years to come', START_NS + 10n ** 18n, false],
  ])('%s: %s ns, %s', (_what, mtimeNs, expected) => {
    expect(tellsChanges(mtimeNs, START_NS)).toBe(expected);
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
