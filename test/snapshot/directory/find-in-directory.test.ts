import * as fs from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ObjectId, type Repository, writeObject } from '../../../src/repository/index.ts';
import {
  DirectoryEncoder,
  type DirectoryEntry,
  findInDirectory,
} from '../../../src/snapshot/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { createTest, openTest } from '../../support/repositories.ts';
import { callsThrough } from '../../support/with-calls.ts';

const work = tempDirectory('find-in-directory');
const SUMMARY = { size: 0, files: 0, symlinks: 0, dirs: 1, maxTimeNs: 0n, numFailed: 0 };
const COUNT = 12_000;
const entryOf = (name: string, type: string, at: number): DirectoryEntry => ({
  name,
  type,
  mode: 0o755,
  size: at,
  mtimeNs: 0n,
  uid: 0,
  gid: 0,
  objectId: at.toString(16).padStart(32, '0') as ObjectId,
});
const numbered = (type: string, start: string): DirectoryEntry[] =>
  Array.from({ length: COUNT }, (_, at) =>
    entryOf(`${start}-${String(at).padStart(6, '0')}`, type, at),
  );

describe('a name in a directory of many contents', () => {
  let repository: Repository;
  let asked = 0;
  beforeAll(async () => {
    await createTest(work, { splitter: 'FIXED-128K' });
    repository = await openTest(work);
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(work, { recursive: true, force: true });
  });

  async function write(entries: readonly DirectoryEntry[]): Promise<ObjectId> {
    const encoder = new DirectoryEncoder();
    const text = encoder.entries(entries) + encoder.end(SUMMARY);
    const { splitter } = repository;
    return writeObject(repository.contents, [Buffer.from(text)], {
      prefix: 'k',
      compressor: undefined,
      metadataCompressor: undefined,
      splitter,
      indexSplitter: splitter,
    });
  }
  async function find(id: ObjectId, name: string): Promise<number | undefined> {
    const contents = callsThrough(repository.contents, (call, _, go) => {
      if (call === 'getContent') asked++;
      return go();
    });
    asked = 0;
    return (await findInDirectory({ contents } as unknown as Repository, id, { name }))?.size;
  }

  it('is found by reading few of them, wherever it is', async () => {
    const id = await write([...numbered('d', 'x'), ...numbered('f', 'm')]);
    for (let at = 0; at < COUNT; at += 997) {
      const name = String(at).padStart(6, '0');
      expect(await find(id, `m-${name}`)).toBe(at);
      expect(asked).toBeLessThan(12);
      expect(await find(id, `x-${name}`)).toBe(0);
      expect(asked).toBeLessThan(20);
    }
    expect(await find(id, `m-${String(COUNT - 1).padStart(6, '0')}`)).toBe(COUNT - 1);
    expect(await find(id, 'm-none')).toBeUndefined();
  });

  it('is found in one that is not sorted, or has names that are written in several ways', async () => {
    const files = numbered('f', 'm');
    const id = await write([...files.slice(5000), ...files.slice(0, 5000), entryOf('ä<', 'f', 7)]);
    for (let at = 0; at < COUNT; at += 1999) {
      expect(await find(id, `m-${String(at).padStart(6, '0')}`)).toBe(at);
    }
    expect(await find(id, 'ä<')).toBe(7);
  });
});
