import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { FileEntry } from '../../../../src/server/page/files/contract.ts';
import {
  type FileListing,
  FILES_A_PAGE,
  fileQueryOf,
  listFiles,
} from '../../../../src/server/page/files/listing.ts';

const entryOf = (at: number): FileEntry => ({
  name: String(at).padStart(6, '0'),
  type: 'f',
  mode: 0,
  uid: 0,
  gid: 0,
  objectId: '',
  sizeBytes: (at * 7919) % 1000,
  mtimeNs: BigInt((at * 104_729) % 5000),
});

/** `taken` has the number of consumed entries. */
async function* batchesOf(
  count: number,
  batch: number,
  { skip = 0, taken = { count: 0 } }: { skip?: number; taken?: { count: number } } = {},
): AsyncGenerator<FileEntry[]> {
  for (let at = skip; at < count; at += batch) {
    await Promise.resolve();
    const length = Math.min(batch, count - at);
    taken.count += length;
    yield Array.from({ length }, (_, i) => entryOf(at + i));
  }
}

const list = (count: number, query: string, sortedMax?: number): Promise<FileListing> =>
  listFiles((skip) => batchesOf(count, 70, { skip }), fileQueryOf(new URLSearchParams(query)), {
    ...(sortedMax !== undefined && { sortedMax }),
  });

describe('a directory in pages', () => {
  it('all pages together are the directory, in any order, however long it is', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.nat(1500),
        fc.constantFrom('name', 'size', 'time'),
        fc.boolean(),
        fc.constantFrom(300, 20_000),
        async (count, order, isDown, sortedMax) => {
          const rows: FileEntry[] = [];
          for (let page = 1; ; page++) {
            const query = `order=${order}&page=${page}${isDown ? '&down=1' : ''}`;
            const listing = await list(count, query, sortedMax);
            expect(listing.page).toBe(page);
            rows.push(...listing.rows);
            const isLong = count > sortedMax;
            expect(listing.total).toBe(isLong ? undefined : count);
            expect(listing.isInOrder).toBe(!isLong || (order === 'name' && !isDown));
            if (!listing.hasMore) break;
            expect(listing.rows.length).toBe(FILES_A_PAGE);
          }
          expect(new Set(rows.map(({ name }) => name)).size).toBe(count);
          const isSorted = count <= sortedMax || (order === 'name' && !isDown);
          if (!isSorted) return;
          const keyOf = ({ name, sizeBytes, mtimeNs }: FileEntry): number =>
            order === 'size' ? sizeBytes : order === 'time' ? Number(mtimeNs) : Number(name);
          const keys = rows.map(keyOf);
          expect(keys).toEqual(keys.toSorted((a, b) => (isDown ? b - a : a - b)));
        },
      ),
      { numRuns: 40 },
    );
  });

  it('of a long one no more is read than the page needs', async () => {
    const taken = { count: 0 };
    const query = fileQueryOf(new URLSearchParams('page=3'));
    const long = (skip: number) => batchesOf(1_000_000, 100, { skip, taken });
    const { rows } = await listFiles(long, query, { sortedMax: 500 });
    expect(rows[0]?.name).toBe('000400');
    expect(taken.count).toBeLessThan(1000);
  });

  it.each([
    { count: 1_000_000, page: 5000, first: '999800' },
    { count: 1_000_000, page: 5001, first: undefined },
    { count: 999_999, page: 5000, first: '999800' },
  ])('page $page of $count is read without those before it', async ({ count, page, first }) => {
    const taken = { count: 0 };
    const long = (skip: number) => batchesOf(count, 100, { skip, taken });
    const listing = await listFiles(long, fileQueryOf(new URLSearchParams(`page=${page}`)));
    expect(listing).toMatchObject({ page, hasMore: false, total: undefined });
    expect(listing.rows[0]?.name).toBe(first);
    expect(taken.count).toBeLessThan(1000);
  });

  it('a page that is not there is the last one', async () => {
    expect((await list(10, 'page=99')).page).toBe(1);
    expect(await list(0, 'page=2')).toMatchObject({ page: 1, rows: [], total: 0, hasMore: false });
    expect((await list(1500, 'page=99', 300)).rows).toEqual([]);
  });

  it.each(['page=0', 'page=-1', 'page=1e3', 'page=', 'order=owner', 'down=yes', 'page=9999999'])(
    '%s is the usual query',
    (query) => {
      const usual = { order: 'name', isDescending: false, page: 1 };
      expect(fileQueryOf(new URLSearchParams(query))).toEqual(usual);
    },
  );
});
