import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import {
  encodeIndirect,
  listPieces,
  type ObjectId,
  type Repository,
  streamPieces,
  writeObject,
} from '../../../src/repository/index.ts';
import type { DirectoryEntry } from '../../../src/snapshot/index.ts';
import { restoreBlocksInPlace } from '../../../src/uploader/index.ts';
import { Difference } from '../../../src/uploader/in-place/difference.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('many-pieces');
let repository: Repository;
beforeAll(async () => {
  await createTest(join(work, 'repo'));
  repository = await openTest(join(work, 'repo'));
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});

function put(parts: Iterable<Uint8Array>): Promise<ObjectId> {
  const { splitter } = repository;
  return writeObject(repository.contents, parts, {
    prefix: '',
    compressor: undefined,
    metadataCompressor: undefined,
    splitter,
    indexSplitter: splitter,
  });
}

/**
 * More pieces than are kept between two checks, of 2 and 3 bytes by turns. The last pieces are a
 * list of their own, which occurs twice.
 */
const PIECES = 20_000;
const text = 'ab'.length + 'cde'.length;
const sizeOfRun = (PIECES / 2) * text;

async function objectOfMany(): Promise<{ objectId: ObjectId; bytes: Buffer }> {
  const ids = [await put([Buffer.from('ab')]), await put([Buffer.from('cde')])];
  const entries = function* () {
    for (let i = 0; i < PIECES; i++) {
      const start = Math.floor(i / 2) * text + (i % 2) * 2;
      yield { start, length: 2 + (i % 2), id: ids[i % 2] as ObjectId, count: 1 };
    }
  };
  const run = `I${await put(encodeIndirect(entries()))}` as ObjectId;
  const twice = { start: 0, length: sizeOfRun, id: run, count: 2 };
  const objectId = `I${await put(encodeIndirect([twice]))}` as ObjectId;
  await repository.flush();
  return { objectId, bytes: Buffer.from('abcde'.repeat(PIECES)) };
}

describe('an object of many pieces', () => {
  it('is listed in parts as it is listed whole', async () => {
    const { objectId, bytes } = await objectOfMany();
    const whole = await listPieces(repository.contents, objectId);
    const parts: unknown[] = [];
    let most = 0;
    for await (const part of streamPieces(repository.contents, { objectId, size: bytes.length })) {
      parts.push(...part);
      most = Math.max(most, part.length);
    }
    expect(parts).toEqual(whole);
    expect([parts.length, most < PIECES / 5]).toEqual([2 * PIECES, true]);
    const wrong = streamPieces(repository.contents, { objectId, size: bytes.length - 1 });
    await expect(Array.fromAsync(wrong)).rejects.toMatchObject({ code: 'BAD_OBJECT' });
  });

  it('is brought back in place, piece by piece', async () => {
    const { objectId, bytes } = await objectOfMany();
    const path = join(work, 'volume');
    const spoiled = Buffer.from(bytes);
    for (const at of [0, 3, sizeOfRun - 1, sizeOfRun, bytes.length - 3]) spoiled[at] = 0x58;
    fs.writeFileSync(path, spoiled);
    const common = { mode: 0o644, mtimeNs: 0n, uid: 0, gid: 0 };
    const root: DirectoryEntry = { ...common, name: 'v', type: 'f', size: bytes.length, objectId };
    const result = await restoreBlocksInPlace(repository, root, path, {
      logger: silentLogger,
      signal: new AbortController().signal,
      ignoreOpenFiles: true,
    });
    // Two of "ab" and three of "cde".
    expect(result).toMatchObject({ bytesWritten: 2 * 2 + 3 * 3, bytesCompared: bytes.length });
    expect(fs.readFileSync(path).equals(bytes)).toBe(true);
  });

  it('whose list says what is not true is refused, and nothing is written', async () => {
    const id = await put([Buffer.from('ab')]);
    const huge = 2 ** 40;
    for (const [length, count] of [
      [1, 1],
      [huge, 1],
      // Repeated, it may be zeros: nobody makes that many to find out.
      [huge, 2],
    ] as const) {
      const entries = [{ start: 0, length, id, count }];
      const size = length * count;
      const objectId = `I${await put(encodeIndirect(entries))}` as ObjectId;
      await repository.flush();
      const path = join(work, `lie-${size}`);
      fs.writeFileSync(path, '');
      fs.truncateSync(path, size);
      const common = { mode: 0o644, mtimeNs: 0n, uid: 0, gid: 0 };
      const root: DirectoryEntry = { ...common, name: 'v', type: 'f', size, objectId };
      const run = restoreBlocksInPlace(repository, root, path, {
        logger: silentLogger,
        signal: new AbortController().signal,
        ignoreOpenFiles: true,
      });
      await expect(run).rejects.toThrow(`has 2 bytes, but the snapshot says ${length}`);
      expect(fs.statSync(path).blocks).toBe(0);
      fs.rmSync(path);
    }
  });
});

it('which pieces differ takes a bit for each', () => {
  const difference = new Difference();
  const numbers = [0, 7, 8, 511, 512, 10_000_000];
  for (const number of numbers) difference.add(number, 10);
  const found = Array.from({ length: 2000 }, (_, i) => i).filter((i) => difference.has(i));
  expect(found).toEqual(numbers.slice(0, -1));
  expect([difference.has(10_000_000), difference.has(9_999_999)]).toEqual([true, false]);
  expect([difference.has(1e9), difference.bytes, difference.pieces]).toEqual([false, 60, 6]);
});
