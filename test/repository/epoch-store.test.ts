import * as fs from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { HOUR_NS, ManualClock, MINUTE_NS } from '../../src/base/index.ts';
import { blobId, type BlobMetadata, type BlobStorage, faulty } from '../../src/blob/index.ts';
import { ForwardingStorage } from '../../src/blob/wrappers/forwarding.ts';
import { EpochIndexStore } from '../../src/repository/content/epoch-index-store.ts';
import { longestChain, type RangeSet } from '../../src/repository/content/epoch-state.ts';
import type { SessionId } from '../../src/repository/content/session.ts';
import type { Repository } from '../../src/repository/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('epoch-store');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const SESSION = 's0123456789abcdef147' as SessionId;

/**
 * Each listing takes a while by the test's clock; too many of them end the test instead of going on
 * for ever.
 */
class SlowListing extends ForwardingStorage {
  readonly #clock: ManualClock;
  readonly #takesNs: bigint;
  listings = 0;

  constructor(inner: BlobStorage, clock: ManualClock, takesNs: bigint) {
    super(inner);
    this.#clock = clock;
    this.#takesNs = takesNs;
  }

  override listBlobs(prefix: string): AsyncIterable<BlobMetadata> {
    if (++this.listings > 40) throw new Error('the store lists for ever');
    this.#clock.advance(this.#takesNs);
    return super.listBlobs(prefix);
  }
}

async function openNew(name: string): Promise<Repository> {
  await createTest(join(work, name));
  return openTest(join(work, name));
}

function storeOf(repository: Repository, refreshFrequencyNs: number, listingTakesNs: bigint) {
  const clock = new ManualClock(1_800_000_000n * 1_000_000_000n);
  const storage = new SlowListing(repository.storage, clock, listingTakesNs);
  const { codec } = repository;
  return new EpochIndexStore({ storage, codec, clock, refreshFrequencyNs, putOptions: {} });
}

describe('a repository that asks for a refresh of 0', () => {
  it('can be read', async () => {
    await using repository = await openNew('zero-read');
    const store = storeOf(repository, 0, 5_000_000_000n);
    expect((await store.listActive()).blobs.length).toBeGreaterThan(0);
  });

  it('can be written', async () => {
    await using repository = await openNew('zero-write');
    const store = storeOf(repository, 0, 5_000_000_000n);
    expect(await store.write([new Uint8Array(100)], SESSION)).toHaveLength(1);
  });
});

it('a storage whose listings never end in time is an error, for reading and for writing', async () => {
  await using repository = await openNew('slow');
  const store = storeOf(repository, Number(20n * MINUTE_NS), HOUR_NS);
  const error = {
    code: 'INDEX_STORAGE_TOO_SLOW',
    message: expect.stringContaining('1200 s') as string,
  };
  await expect(store.listActive()).rejects.toMatchObject(error);
  await expect(store.write([new Uint8Array(100)], SESSION)).rejects.toMatchObject(error);
  const left = await Array.fromAsync(repository.storage.listBlobs('xn'));
  expect(left.every(({ id }) => !id.includes(SESSION))).toBe(true);
});

it('a listing that failed does not make the state before it count as new', async () => {
  await using repository = await openNew('failed-listing');
  const clock = new ManualClock(1_800_000_000n * 1_000_000_000n);
  let isFailing = false;
  const storage = faulty(repository.storage, ({ operation }) => {
    if (operation === 'list' && isFailing) throw new Error('the listing failed');
  });
  const { codec } = repository;
  const refreshFrequencyNs = Number(20n * MINUTE_NS);
  const store = new EpochIndexStore({ storage, codec, clock, refreshFrequencyNs, putOptions: {} });
  expect(await store.write([new Uint8Array(100)], SESSION)).toEqual([
    expect.stringMatching(/^xn0_/),
  ]);
  clock.advance(HOUR_NS);
  isFailing = true;
  await expect(store.listActive()).rejects.toThrow('the listing failed');
  await expect(store.write([new Uint8Array(101)], SESSION)).rejects.toThrow('the listing failed');
  isFailing = false;
  // A second client has begun the next epoch meanwhile.
  await repository.storage.putBlob(blobId('xe1'), [Buffer.from('epoch-marker')]);
  expect(await store.write([new Uint8Array(102)], SESSION)).toEqual([
    expect.stringMatching(/^xn1_/),
  ]);
});

describe('the chain of range compactions', () => {
  const range = (min: number, max: number): RangeSet => ({ min, max, blobs: [] });
  const named = (chain: readonly RangeSet[]): string =>
    chain.map(({ min, max }) => `${min}-${max}`).join(' ');

  /** Every chain from epoch 0 on, by trying all. */
  function* chains(ranges: readonly RangeSet[], next = 0): Generator<RangeSet[]> {
    yield [];
    for (const first of ranges.filter(({ min }) => min === next)) {
      for (const rest of chains(ranges, first.max + 1)) yield [first, ...rest];
    }
  }

  it('reaches as far as possible, in as few pieces as possible', () => {
    expect(named(longestChain([]))).toBe('');
    expect(named(longestChain([range(1, 5)]))).toBe('');
    expect(named(longestChain([range(0, 6), range(7, 13)]))).toBe('0-6 7-13');
    expect(named(longestChain([range(0, 6), range(8, 13)]))).toBe('0-6');
    expect(named(longestChain([range(0, 6), range(0, 13), range(7, 13)]))).toBe('0-13');
    expect(named(longestChain([range(0, 9), range(0, 6), range(7, 20)]))).toBe('0-6 7-20');
  });

  it('is the best of all chains, in whatever order the ranges are listed', () => {
    const ranges = fc.uniqueArray(
      fc
        .tuple(fc.integer({ min: 0, max: 8 }), fc.integer({ min: 0, max: 4 }))
        .map(([min, more]) => range(min, min + more)),
      { maxLength: 10, selector: ({ min, max }) => `${min}-${max}` },
    );
    fc.assert(
      fc.property(ranges, (list) => {
        const end = (chain: readonly RangeSet[]): number => chain.at(-1)?.max ?? -1;
        const all = [...chains(list)];
        const furthest = Math.max(...all.map(end));
        const fewest = Math.min(
          ...all.filter((chain) => end(chain) === furthest).map(({ length }) => length),
        );
        const chain = longestChain(list);
        expect([end(chain), chain.length]).toEqual([furthest, fewest]);
        let next = 0;
        for (const { min, max } of chain) {
          expect(min).toBe(next);
          next = max + 1;
        }
      }),
    );
  });
});
