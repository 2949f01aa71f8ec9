import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CanceledError, SECOND_NS } from '../../src/base/index.ts';
import type { DirectoryEntry, Snapshot } from '../../src/snapshot/index.ts';
import type { SourceEntry } from '../../src/uploader/listing/listing.ts';
import {
  comparedTimeOf,
  FROZEN_TAG,
  type FrozenSource,
  PreviousEntries,
  tellsChanges,
} from '../../src/uploader/listing/previous-entries.ts';
import { newUploadCounters } from '../../src/uploader/index.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('same-time');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

const START_NS = 1_000_000n * SECOND_NS + 500_000_000n;
const MS = 1_000_000n;

describe('a time of a file tells of later changes', () => {
  it.each([
    ['long before the snapshot began', START_NS - 3_600n * SECOND_NS, true],
    ['just before all that is written then is on the storage', START_NS - 121n * SECOND_NS, true],
    ['within the time that the kernel may take to write', START_NS - 35n * SECOND_NS, false],
    ['as it began', START_NS, false],
    ['while it was made', START_NS + SECOND_NS, false],
    ['in years to come', START_NS + 10n ** 18n, false],
  ])('%s: %s ns, %s', (_what, mtimeNs, expected) => {
    expect(tellsChanges(mtimeNs, START_NS)).toBe(expected);
  });

  const DAY_NS = 24n * 3600n * SECOND_NS;
  const frozen: FrozenSource = { atNs: 1n, isSame: ({ id }) => id === 'same' };
  it.each([
    ['that says nothing, of a source that changes', undefined, undefined, START_NS],
    ['that says nothing, of one that stood still', undefined, frozen, START_NS - DAY_NS],
    ['whose source stood still before it began', '300', frozen, 300n],
    ['that is said to have stood still after that', String(START_NS + 1n), frozen, START_NS],
    ['that says what nobody can read', 'yesterday', frozen, START_NS - DAY_NS],
  ])('compared with that of a snapshot %s', (_what, frozenAt, source, expected) => {
    const tags = frozenAt === undefined ? undefined : { [FROZEN_TAG]: frozenAt };
    const snapshot = { id: 'x', startTimeNs: START_NS, tags } as unknown as Snapshot;
    expect(comparedTimeOf(snapshot, source)).toBe(expected);
  });

  it('of the very same source in any case', () => {
    const snapshot = { id: 'same', startTimeNs: START_NS } as unknown as Snapshot;
    expect(tellsChanges(START_NS + SECOND_NS, comparedTimeOf(snapshot, frozen))).toBe(true);
  });

  it('of the later one of two snapshots that hold the same directory', () => {
    const directory = { name: 'd', type: 'd', objectId: 'k1' } as unknown as DirectoryEntry;
    const listed = { name: 'd', rawName: 'd' } as unknown as SourceEntry;
    const lists = [5n, 7n, 6n].map((startNs) => ({
      entries: [directory],
      startNs,
      recorded: '',
    }));
    expect(new PreviousEntries(lists).directories(listed)).toEqual([
      { id: 'k1', startNs: 7n, recorded: '' },
    ]);
  });
});

/**
 * Changes a file; its size and time stay, as those of a file that changes twice within one tick of
 * the clock.
 */
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
    // The start of the backup: a later write may get the same time.
    const soon = new Date();
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
    // A file that is still so new is read again.
    const third = await backUp(repository, tree, options);
    expect(third.counters).toMatchObject({ files: 1, cachedFiles: 18, contentsNew: 0 });
    expect(third.rootEntry.objectId).toBe(second.rootEntry.objectId);
  });
});

describe('files that a snapshot of the storage holds as they were', () => {
  const [repo, tree] = [at('repo frozen'), at('tree frozen')];
  const source = (
    takenMs: number,
    uid: string,
  ): { tags: Record<string, string>; frozen: FrozenSource } => ({
    tags: { uid },
    frozen: { atNs: BigInt(takenMs) * MS, isSame: ({ tags }) => tags?.uid === uid },
  });

  it('are read again when they changed shortly before it was taken, long before the backup began', async () => {
    fs.mkdirSync(tree);
    fs.writeFileSync(join(tree, 'file'), 'AAAA');
    fs.writeFileSync(join(tree, 'older'), 'of before');
    const takenMs = Date.now() - 600_000;
    fs.utimesSync(join(tree, 'file'), takenMs / 1000 - 30, takenMs / 1000 - 30);
    for (const path of [join(tree, 'older'), tree]) fs.utimesSync(path, 0, 0);
    await createTest(repo);
    await using repository = await openTest(repo, { threads: true });
    await backUp(repository, tree, source(takenMs, 'a'));
    // Its new data come to the storage after its new time.
    changeUnseen(join(tree, 'file'));
    const second = await backUp(repository, tree, source(takenMs + 60_000, 'b'));
    expect(second.counters).toMatchObject({ files: 1, cachedFiles: 1 });
    // A backup that continues from the same snapshot reads no file again.
    const again = await backUp(repository, tree, source(takenMs + 60_000, 'b'));
    expect(again.counters).toMatchObject({ files: 0, cachedFiles: 2 });
    const third = await backUp(repository, tree, source(takenMs + 120_000, 'c'));
    expect(third.counters).toMatchObject({ files: 1, cachedFiles: 1 });
    const fourth = await backUp(repository, tree, source(takenMs + 180_000, 'd'));
    expect(fourth.counters).toMatchObject({ files: 0, cachedFiles: 2 });
    await restore(repository, fourth.rootEntry, at('out frozen'));
    assertSameTree(tree, at('out frozen'));
  });

  it('are compared with that time by whoever goes on after one was cut short', async () => {
    await using repository = await openTest(repo, { threads: true });
    const stop = new AbortController();
    const counters = newUploadCounters();
    Object.defineProperty(counters, 'directories', {
      get: () => 0,
      set: () => {
        stop.abort(new CanceledError('user'));
      },
    });
    const { snapshot } = await backUp(repository, tree, {
      ...source(1_000_000, 'cut'),
      counters,
      signal: stop.signal,
    });
    expect(snapshot.incomplete).toBe('canceled');
    expect(snapshot.tags).toMatchObject({ [FROZEN_TAG]: '1000000000000' });
  });
});
