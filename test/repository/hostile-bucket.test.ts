import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { BlobNotFoundError, blobId, openStorage } from '../../src/blob/index.ts';
import {
  completeIndexSet,
  loadEpochState,
  longestChain,
} from '../../src/repository/content/epoch-state.ts';
import { type BlobMetadata } from '../../src/blob/index.ts';
import {
  live,
  makeVictim,
  missing,
  open,
  outcomeOf,
  type Victim,
} from '../support/hostile-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';
import { MemoryStorage } from '../support/memory-storage.ts';

/** Somebody writes to the bucket and has no password. */
let victim: Victim;
beforeAll(async () => {
  victim = await makeVictim();
});
const work = tempDirectory('hostile');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const indexes = (kind: string): string[] =>
  [...victim.storage.blobs.keys()].filter((id) => id.startsWith(kind)).sort();
const bytesOf = (id: string): Buffer => victim.storage.blobs.get(id)?.bytes ?? expect.fail(id);
/** The same bytes under a name that tells another place: the hash, which gives the key, stays. */
const renamed = (id: string, to: string): [string, Buffer] => {
  const [hash = ''] = /(?<=_)[0-9a-f]{32,}/.exec(id) ?? [];
  return [`${to}${hash}-s0123456789abcdef-c1`, bytesOf(id)];
};
const writeEpoch = async (): Promise<number> => (await loadEpochState(victim.storage)).writeEpoch;

function withBlobs(...hostile: [string, Uint8Array][]): Victim {
  const storage = victim.storage.clone();
  for (const [id, bytes] of hostile) storage.set(id, bytes);
  return { ...victim, storage };
}

describe('somebody who writes to the bucket without the password', () => {
  it('finds a repository some epochs old', async () => {
    expect(await writeEpoch()).toBeGreaterThanOrEqual(3);
    expect(indexes('xs').length).toBeGreaterThan(0);
    await using repository = await open(victim);
    expect(await missing(victim, repository)).toEqual([]);
  });

  it.each([
    'xe3000000000',
    'xe99999999999999999999999999999',
    'xn3000000000_0123456789abcdef0123456789abcdef-s0-c1',
    'xw99999999999999999999',
  ])('cannot stop or change anything by the absurd number of an empty %s', async (id) => {
    const hostile = withBlobs([id, Buffer.alloc(0)]);
    await using repository = await open(hostile);
    expect(await missing(victim, repository)).toEqual([]);
    const state = await loadEpochState(hostile.storage);
    expect(state.writeEpoch).toBe(await writeEpoch());
    expect(state.watermarkSeconds).toBeLessThan(Number(victim.clock.nowNs() / 10n ** 9n));
    expect(await live(victim, new Map([[id, Buffer.alloc(0)]]))).toEqual(['fine', 'fine', 'fine']);
  });

  it('cannot hide newer epochs by a range beyond the write epoch', async () => {
    const [old = ''] = indexes('xs');
    const range = renamed(old, 'xr0_999999_');
    const hostile = withBlobs(range);
    await using repository = await open(hostile);
    expect(await missing(victim, repository)).toEqual([]);
    expect(await live(victim, new Map([range]))).toEqual(['fine', 'fine', 'fine']);
  });

  it('cannot have packs deleted by a compaction that hides an epoch', async () => {
    const [epoch, old = ''] = [await writeEpoch(), indexes('xs')[0]];
    const settled = [1, 2, 3, 4].map((more): [string, Buffer] => [
      `xe${epoch + more}`,
      Buffer.from('epoch-marker'),
    ]);
    const copies = [0, 1, 2, 3].map((more) => renamed(old, `xn${epoch + more}_`));
    for (const hiding of [renamed(old, `xs${epoch - 1}_`), renamed(old, `xr0_${epoch + 1}_`)]) {
      const outcomes = await live(victim, new Map([...settled, ...copies, hiding]));
      expect(outcomes, hiding[0]).toContain('INDEX_HIDDEN');
    }
  });

  it('cannot have compactions made of epochs that are not over', async () => {
    const epoch = await writeEpoch();
    const marker = new Map([[`xe${epoch + 5}`, Buffer.from('epoch-marker')]]);
    expect(await live(victim, marker)).toContain('EPOCH_IMPLAUSIBLE');
  });

  it('keeps nobody from reading by a blob that is no index; maintenance names it and stops', async () => {
    for (const bytes of [Buffer.from('junk'), Buffer.alloc(0)]) {
      const id = `xn${await writeEpoch()}_0123456789abcdef0123456789abcdef-s0-c1`;
      const hostile = withBlobs([id, bytes]);
      await using repository = await open(hostile);
      expect(repository.contents.unreadableIndexes).toMatchObject([
        { code: 'DAMAGED_BLOB', facts: { blobId: id } },
      ]);
      expect(await missing(hostile, repository)).toEqual([]);
      expect(await live(victim, new Map([[id, bytes]]))).toContain('INDEX_UNREADABLE');
    }
    // Names that no client gives are foreign.
    const foreign = withBlobs([`xn${await writeEpoch()}_ünïcode\u0000\u202e`, Buffer.from('junk')]);
    await using repository = await open(foreign);
    expect(repository.contents.unreadableIndexes).toEqual([]);
  });

  it('cannot keep anybody busy with many small blobs', async () => {
    const junk = new Map<string, Uint8Array>();
    for (let i = 0; i < 20_000; i++) {
      const hash = i.toString(16).padStart(32, '0');
      for (const name of [`p${hash}-s1`, `s${hash}-s2`, `xe${i}x`, `xr${i}_${i}_${hash}-sa-c2`]) {
        junk.set(name, Buffer.of(1));
      }
    }
    const storage = victim.storage.clone();
    for (const [id, bytes] of junk) storage.set(id, bytes);
    await using repository = await open({ ...victim, storage });
    expect(await missing(victim, repository)).toEqual([]);
    expect(completeIndexSet(await loadEpochState(storage)).length).toBeLessThan(200);
  });

  it('cannot exhaust the stack or the memory by a million ranges', () => {
    const blobs: BlobMetadata[] = [];
    const ranges = Array.from({ length: 1_000_000 }, (_, i) => ({ min: i, max: i, blobs }));
    expect(longestChain(ranges)).toHaveLength(1_000_000);
  });

  it.each([
    'kopia.repository',
    'kopia.blobcfg',
    'kopia.maintenance',
    'kopia.longshore-password-change',
  ])('cannot take memory by a %s of 1.5 GB', async (id) => {
    const storage = victim.storage.clone();
    // Only its length: a read of it would fail.
    const read = storage.getBlob.bind(storage);
    storage.getBlob = (wanted, options) => {
      if (wanted !== id) return read(wanted, options);
      expect(options?.lengthMax ?? Infinity).toBeLessThan(32 << 20);
      return Promise.reject(new BlobNotFoundError(blobId(id)));
    };
    await outcomeOf(async () => {
      await using repository = await open({ ...victim, storage });
      const { loadSchedule } = await import('../../src/repository/index.ts');
      await loadSchedule(repository);
    });
  });

  it('has every whole read of a kind bounded, also of sessions, logs and replaced indexes', async () => {
    const large = Buffer.alloc(17 << 20);
    const junk = new Map<string, Uint8Array>([
      ['s0123456789abcdef0123456789abcdef-s1', large],
      ['kopia.maintenance', large],
    ]);
    const storage = victim.storage.clone();
    for (const [id, bytes] of junk) storage.set(id, bytes);
    expect(await live(victim, junk)).toContain('DAMAGED_BLOB');
    expect(storage.wholeReads.filter(({ lengthBytes }) => lengthBytes > 9 << 20)).toEqual([]);
  });

  it('loses nobody a content by any set of blobs (random)', async () => {
    const epoch = fc.oneof(
      fc.integer({ min: 0, max: 8 }),
      fc.constantFrom(999_999, 9_999_999, 3_000_000_000, 2 ** 53, 1e30),
    );
    const all = [...victim.storage.blobs.keys()].sort();
    const ofIndexes = all.filter((id) => /^x[nsr]/.test(id));
    const name = fc.oneof(
      fc.tuple(fc.constantFrom('xe', 'xw'), epoch).map(([kind, n]) => `${kind}${n}`),
      fc.constantFrom(
        'xe',
        'xw',
        'xn',
        'xs0',
        'xr0_',
        'x',
        's',
        'n',
        'm',
        'p',
        'q',
        '_log',
        'kopia.x',
      ),
      fc
        .string({ unit: 'binary', minLength: 1, maxLength: 12 })
        .map((text) => `x${text.replaceAll('/', '')}`),
    );
    const junk = fc.tuple(name, fc.uint8Array({ maxLength: 40 }));
    const copy = fc
      .tuple(
        fc.constantFrom(...ofIndexes),
        fc.constantFrom('xn', 'xs', 'xr'),
        epoch,
        epoch,
        fc.nat(3),
      )
      .map(([id, kind, a, b, cut]): [string, Uint8Array] => {
        const [to, bytes] = renamed(id, kind === 'xr' ? `xr${a}_${b}_` : `${kind}${a}_`);
        return [to, cut === 0 ? bytes.subarray(0, bytes.length / 2) : bytes];
      });
    const other = fc
      .tuple(fc.constantFrom(...all), fc.constantFrom('p', 'q', 's', 'm', 'n', '_log_', 'xn0_'))
      .map(([id, prefix]): [string, Uint8Array] => [`${prefix}${id.slice(1)}x`, bytesOf(id)]);
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.oneof(junk, copy, copy, other), { minLength: 1, maxLength: 8 }),
        async (blobs) => {
          const hostile = new Map(blobs.filter(([id]) => !victim.storage.blobs.has(id)));
          await live(victim, hostile);
        },
      ),
      { numRuns: process.env.SOAK === '1' ? 3000 : 25, seed: 13 },
    );
  }, 1_800_000);
});

it('a blob of a kind that is too long is refused before its bytes are read', async () => {
  const path = join(work, 'long');
  await using directory = await openStorage(path, { create: true });
  const memory = new MemoryStorage();
  for (const storage of [directory, memory]) {
    await storage.putBlob(blobId('kopia.repository'), [Buffer.alloc(1000)]);
    const read = (lengthMax: number): Promise<Uint8Array> =>
      storage.getBlob(blobId('kopia.repository'), { lengthMax });
    expect(await read(1000)).toHaveLength(1000);
    await expect(read(999)).rejects.toMatchObject({ code: 'DAMAGED_BLOB' });
  }
});
