import { hash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { STAT_FIELDS } from '../../src/volume-files/index.ts';
import { decodeListing } from '../../src/uploader/listing/listing.ts';
import { LongNames } from '../../src/uploader/long-directory/long-directory.ts';
import { NameSet } from '../../src/uploader/listing/name-set.ts';
import { Summarizer } from '../../src/uploader/upload/directory-summary.ts';

/** A file of each name, listed. */
function listed(names: readonly (string | Uint8Array)[]): ReturnType<typeof decodeListing> {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  names.forEach((_, i) => (stats[i * STAT_FIELDS] = 0o100644n));
  return decodeListing({ names, stats, targets: [], failures: [] });
}
const latin = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'latin1'));

// These take hours when the time grows with the square of the number.
describe('many names that are not UTF-8', () => {
  it('are listed in time', () => {
    const names = Array.from({ length: 150_000 }, (_, i) => latin(`é-${i}`));
    const { entries, renamed } = listed(names);
    expect(renamed.length).toBe(names.length);
    expect(new Set(entries.map(({ name }) => name)).size).toBe(names.length);
  });

  it('that all become the same name get a suffix each, in time', () => {
    const names = Array.from({ length: 60_000 }, (_, i) =>
      Uint8Array.from(
        [0xe9 + (i % 7), 0x80 + (i % 64), ...new Array(6).keys()].map((byte, k) =>
          k < 2 ? byte : 0x80 + ((i >> (5 * (k - 2))) & 31),
        ),
      ),
    );
    const different = [
      ...new Map(names.map((name) => [Buffer.from(name).toString('hex'), name])).values(),
    ];
    const { entries } = listed(different);
    expect(new Set(entries.map(({ name }) => name.replaceAll('\ud800', '\ufffd'))).size).toBe(
      different.length,
    );
  });

  it('in parts: the second of two names that become one gets a suffix', () => {
    const renamed: string[] = [];
    const names = new LongNames((name) => renamed.push(name));
    const { entries } = listed([latin('aé'), 'b']);
    const [first] = names.unique(entries);
    const [second] = names.unique(listed([latin('aè')]).entries);
    const [third] = names.unique(listed(['a\ufffd~2']).entries);
    expect([first?.name, second?.name, third?.name]).toEqual([
      'a\ud800',
      'a\ud800~2',
      'a\ufffd~2~2',
    ]);
    expect(renamed).toEqual(['a\ufffd', 'a\ufffd~2']);
  });
});

it('a set of names holds what was added and nothing else', () => {
  const set = new NameSet();
  const names = Array.from({ length: 20_000 }, (_, i) => `name ${i}`);
  expect(names.every((name) => set.add(name))).toBe(true);
  expect(names.some((name) => set.add(name))).toBe(false);
  expect(names.some((name) => set.has(`no ${name}`))).toBe(false);
});

it('nobody can choose two names that count as one', () => {
  // They have the same first 48 bits of SHA-1: a file of the one name was hidden behind the other.
  const [first, second] = ['f1273595', 'f11052687'] as const;
  const starts = [first, second].map((name) => hash('sha1', name).slice(0, 12));
  expect(starts[0]).toBe(starts[1]);
  const set = new NameSet();
  expect(set.add(first)).toBe(true);
  expect(set.has(second)).toBe(false);
  expect(set.add(second)).toBe(true);
});

describe('the summary of a directory', () => {
  const failure = (i: number) => ({
    error: { path: `path-${String(i).padStart(7, '0')}`, error: 'permission denied' },
    ignored: i % 2 === 1,
  });

  it('counts any number of failures, and names the first ten by path', () => {
    const summarizer = new Summarizer();
    for (let i = 300_000; i-- > 0;) summarizer.fail(failure(i));
    const summary = summarizer.finish(0n, false);
    expect(summary).toMatchObject({ numFailed: 150_000, numIgnoredErrors: 150_000 });
    expect(summary.errors).toEqual(Array.from({ length: 10 }, (_, i) => failure(i).error));
  });

  it('takes over failures of directories below, of older snapshots too that name them all', () => {
    const errors = Array.from({ length: 200_000 }, (_, i) => failure(i).error);
    const below = {
      size: 0,
      files: 0,
      symlinks: 0,
      dirs: 1,
      maxTimeNs: 0n,
      numFailed: 200_000,
      errors,
    };
    const entry = { name: 'd', type: 'd', mode: 0, size: 0, mtimeNs: 0n, uid: 0, gid: 0 };
    const summarizer = new Summarizer();
    summarizer.add({ ...entry, objectId: 'k00' as never, summary: below });
    const { numFailed, errors: named } = summarizer.finish(0n, false);
    expect(numFailed).toBe(200_000);
    expect(named).toEqual(errors.slice(0, 10));
  });
});
