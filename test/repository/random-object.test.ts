import * as fs from 'node:fs';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type ObjectId,
  PieceCache,
  RandomObject,
  type Repository,
  writeObject,
} from '../../src/repository/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { createTest, openTest } from '../support/repositories.ts';

const work = tempDirectory('random-object');
const PIECE = 128 << 10;

describe('the bytes of an object at any place', () => {
  let repository: Repository;
  let objectId: ObjectId;
  // Two pieces, ten of zeros, three more and a part.
  const bytes = Buffer.alloc(15 * PIECE + 1000);
  for (let at = 0; at < bytes.length; at += 4) {
    const isHole = at >= 2 * PIECE && at < 12 * PIECE;
    if (!isHole) bytes.writeUInt32LE(at, at);
  }
  const size = bytes.length;
  beforeAll(async () => {
    await createTest(work, { splitter: 'FIXED-128K' });
    repository = await openTest(work);
    const { splitter } = repository;
    objectId = await writeObject(repository.contents, [bytes], {
      ...{ prefix: '', compressor: undefined, metadataCompressor: undefined },
      ...{ splitter, indexSplitter: splitter },
    });
    await repository.flush();
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(work, { recursive: true, force: true });
  });
  const open = (cache = new PieceCache(1 << 20), more: { piecesMax?: number } = {}) =>
    RandomObject.open(repository.contents, { objectId, size }, { cache, ...more });

  it('are those that were written, a repetition as one entry', async () => {
    const object = await open();
    expect(object.pieces).toBe(7);
    const place = fc.tuple(fc.nat(size), fc.nat(3 * PIECE));
    await fc.assert(
      fc.asyncProperty(place, async ([offset, length]) => {
        const read = Buffer.from(await object.read(offset, length));
        expect(read.equals(bytes.subarray(offset, offset + length))).toBe(true);
      }),
      { numRuns: 200 },
    );
  });

  it('what several want at once is fetched once, and what was used longest ago is forgotten', async () => {
    const loads: string[] = [];
    const cache = new PieceCache(250);
    const load = (key: string) => () => {
      loads.push(key);
      return Promise.resolve(Buffer.alloc(100));
    };
    const get = (key: string) => cache.get(key, load(key), undefined);
    await Promise.all([get('a'), get('a'), get('b')]);
    await get('a');
    await get('c');
    await get('a');
    await get('b');
    expect(loads).toEqual(['a', 'b', 'c', 'b']);
  });

  it('what could not be fetched is tried again, and whoever goes ends it for nobody else', async () => {
    const cache = new PieceCache(250);
    await expect(
      cache.get('a', () => Promise.reject(new Error('away')), undefined),
    ).rejects.toThrow('away');
    const { promise, resolve } = Promise.withResolvers<Buffer>();
    const gone = new AbortController();
    const first = cache.get('a', () => promise, gone.signal);
    const second = cache.get('a', () => Promise.reject(new Error('twice')), undefined);
    gone.abort(new Error('gone'));
    await expect(first).rejects.toThrow('gone');
    resolve(Buffer.from('here'));
    expect(String(await second)).toBe('here');
  });

  it('an object with more contents than are held is refused', async () => {
    await expect(open(undefined, { piecesMax: 3 })).rejects.toMatchObject({
      code: 'OBJECT_TOO_LONG',
    });
  });

  it('a list that says something else of a content than it is, is damage', async () => {
    const { contents } = repository;
    const cut = new Proxy(contents, {
      get: (target, key) => {
        const value: unknown = Reflect.get(target, key, target);
        if (typeof value !== 'function') return value;
        if (key !== 'getContent') return value.bind(target) as unknown;
        return async (...all: Parameters<typeof contents.getContent>) =>
          all[0].startsWith('x') ? contents.getContent(...all) : Buffer.alloc(5);
      },
    });
    const cache = new PieceCache(1000);
    const object = await RandomObject.open(cut, { objectId, size }, { cache });
    await expect(object.read(0, 10)).rejects.toMatchObject({ code: 'BAD_OBJECT' });
  });
});
