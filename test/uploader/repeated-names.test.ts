import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { decodeListing } from '../../src/uploader/listing/listing.ts';
import { listLong } from '../../src/uploader/long-directory/long-listing.ts';
import { type DirectoryListing, STAT_FIELDS } from '../../src/volume-files/index.ts';

const work = fs.mkdtempSync(join(tmpdir(), 'repeated-names-'));
afterAll(() => {
  fs.rmSync(work, { recursive: true });
});

/** The names in the listing of any directory. */
let told: readonly Buffer[] = [];
vi.mock(import('node:fs/promises'), async (importOriginal) => ({
  ...(await importOriginal()),
  opendir: () => Promise.resolve(told.map((name) => ({ name })) as never),
}));

const latin = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, 'latin1'));
const looked = (names: readonly (string | Uint8Array)[]): DirectoryListing => {
  const stats = new BigInt64Array(names.length * STAT_FIELDS);
  names.forEach((_, i) => (stats[i * STAT_FIELDS] = 0o100644n));
  return { names, stats, targets: [], failures: [] };
};

describe.each([
  [
    ['b', 'a', 'b', 'ab', 'b', 'a'],
    ['a', 'ab', 'b'],
  ],
  [
    ['é', 'a', 'é'],
    ['a', 'é'],
  ],
  [
    [latin('é'), 'a', latin('é'), latin('ê')],
    ['a', '\ud800', '\ud800'],
  ],
])('a name that a listing tells again is one entry', (names, expected) => {
  it('of a directory', () => {
    const { entries } = decodeListing(looked(names));
    expect(entries.map(({ name }) => name.replace('~2', '')).sort()).toEqual(expected);
  });

  it.each([100, 1 << 20])('of a long one, in runs of %d bytes', async (runBytes) => {
    told = names.map((name) => Buffer.from(name as string));
    const pool = { lookAt: () => Promise.resolve(looked(names)) };
    const { signal } = new AbortController();
    const pages = await Array.fromAsync(
      listLong(work, { pool, signal, runBytes, onFailure: () => undefined }),
    );
    expect(pages.flat().map(({ name }) => name)).toEqual(expected);
  });
});
