import * as fs from 'node:fs';
import fc from 'fast-check';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { type ObjectId, writeObject } from '../../src/repository/index.ts';
import {
  compareEntries,
  diffTrees,
  type DirectoryEntry,
  encodeDirectory,
} from '../../src/snapshot/index.ts';
import { type EntryPair, pairEntries } from '../../src/snapshot/directory/directory-pairs.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('tree-diff');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const entryOf = (
  name: string,
  type: DirectoryEntry['type'] = 'f',
  digit = '0',
): DirectoryEntry => ({
  name,
  type,
  mode: 0o644,
  size: 1,
  mtimeNs: 0n,
  uid: 0,
  gid: 0,
  objectId: digit.repeat(32) as ObjectId,
});

async function* batchesOf(
  entries: readonly DirectoryEntry[],
  onRead: (count: number) => void = () => undefined,
): AsyncGenerator<DirectoryEntry[]> {
  for (let at = 0; at < entries.length; at += 10) {
    await Promise.resolve();
    onRead(Math.min(10, entries.length - at));
    yield entries.slice(at, at + 10);
  }
}

const textOf = ({ before, after }: EntryPair): string =>
  `${before?.name ?? '-'}${before?.type ?? ''} ${after?.name ?? '-'}${after?.type ?? ''}`;

describe('directories beside each other', () => {
  it('pairs what has one name, in any order', async () => {
    const names = fc.uniqueArray(fc.constantFrom(...'abcdefghijklmnopqrstuvwxyz'), {
      maxLength: 26,
    });
    const property = fc.asyncProperty(names, names, async (before, after) => {
      const found = await Array.fromAsync(
        pairEntries(
          batchesOf(before.map((name) => entryOf(name))),
          batchesOf(after.map((name) => entryOf(name))),
        ),
      );
      const all = [...new Set([...before, ...after])].map((name) => {
        const [old, young] = [before.includes(name), after.includes(name)];
        return `${old ? `${name}f` : '-'} ${young ? `${name}f` : '-'}`;
      });
      expect(found.map(textOf).sort()).toEqual(all.sort());
    });
    await fc.assert(property);
  });

  it('pairs all names of sorted ones, however few it holds', async () => {
    const some = fc.uniqueArray(
      fc.record({
        name: fc.constantFrom(...'abcdefghijklmnop', 'é', '😀', '\uffee'),
        type: fc.constantFrom('d', 'f', 's'),
      }),
      { selector: ({ name }) => name },
    );
    const property = fc.asyncProperty(some, some, fc.nat(3), async (before, after, heldMax) => {
      const sorted = (given: typeof before): DirectoryEntry[] =>
        given
          .map(({ name, type }) => entryOf(name, type as DirectoryEntry['type']))
          .sort(compareEntries);
      const [old, young] = [sorted(before), sorted(after)];
      const pairs = pairEntries(batchesOf(old), batchesOf(young), Math.max(1, heldMax));
      const found = await Array.fromAsync(pairs);
      // What became a directory, or was one, has another place: it may come as two.
      const isMoved = (a: DirectoryEntry, b: DirectoryEntry): boolean =>
        (a.type === 'd') !== (b.type === 'd');
      for (const entry of old) {
        const match = young.find(({ name }) => name === entry.name);
        const pair = found.filter(({ before: one }) => one === entry);
        expect(pair).toHaveLength(1);
        if (!match || !isMoved(entry, match)) expect(pair[0]?.after).toBe(match);
      }
      for (const entry of young) {
        expect(found.filter(({ after: one }) => one === entry)).toHaveLength(1);
      }
    });
    await fc.assert(property);
  });

  it('holds a few entries of directories that have nothing in common', async () => {
    const many = (letter: string): DirectoryEntry[] =>
      Array.from({ length: 1000 }, (_, i) => entryOf(letter + String(i).padStart(4, '0')));
    let [read, told, most] = [0, 0, 0];
    const onRead = (count: number): void => {
      read += count;
      most = Math.max(most, read - told);
    };
    const pairs = pairEntries(batchesOf(many('a'), onRead), batchesOf(many('b'), onRead), 20);
    for await (const { before, after } of pairs) told += Number(!!before) + Number(!!after);
    expect([told, most <= 60]).toEqual([2000, true]);
  });

  it('closes both where nobody wants more', async () => {
    const closed = vi.fn();
    async function* open(): AsyncGenerator<DirectoryEntry[]> {
      try {
        for (;;) yield [entryOf('same')];
      } finally {
        await Promise.resolve();
        closed();
      }
    }
    for await (const pair of pairEntries(open(), open())) {
      expect(textOf(pair)).toBe('samef samef');
      break;
    }
    expect(closed).toHaveBeenCalledTimes(2);
  });
});

it('tells what differs in long directories before it has read them to their end', async () => {
  await createTest(work);
  await using repository = await openTest(work);
  const { contents, splitter } = repository;
  const write = async (digit: string): Promise<DirectoryEntry> => {
    const entries = Array.from({ length: 40_000 }, (_, i) =>
      entryOf(`${String(i).padStart(8, '0')}-${'n'.repeat(150)}`, 'f', digit),
    );
    const summary = { size: 0, files: 0, symlinks: 0, dirs: 1, maxTimeNs: 0n, numFailed: 0 };
    const objectId = await writeObject(contents, [encodeDirectory(entries, summary)], {
      prefix: 'k',
      compressor: undefined,
      metadataCompressor: undefined,
      splitter,
      indexSplitter: splitter,
    });
    return { ...entryOf('', 'd'), objectId };
  };
  const [before, after] = [await write('1'), await write('2')];
  await repository.flush();
  const reads = vi.spyOn(contents, 'getContent');
  let early = 0;
  let changed = 0;
  for await (const { kind } of diffTrees(repository, before, after)) {
    if (changed === 0) early = reads.mock.calls.length;
    if (kind === 'changed') changed++;
  }
  expect(changed).toBe(40_000);
  expect(early).toBeLessThan(reads.mock.calls.length);
});
