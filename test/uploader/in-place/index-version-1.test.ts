import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { silentLogger } from '../../../src/base/index.ts';
import {
  encodeIndirect,
  type ObjectId,
  type Repository,
  writeObject,
} from '../../../src/repository/index.ts';
import {
  DEFAULT_POLICY,
  type DirectoryEntry,
  putPolicy,
  streamDirectory,
} from '../../../src/snapshot/index.ts';
import { restoreBlocksInPlace, restoreTreeInPlace } from '../../../src/uploader/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';
import { callsThrough } from '../../support/with-calls.ts';

const work = tempDirectory('index-version-1');
const at = (...names: string[]): string => join(work, ...names);
const FILES = 40;
const textOf = (i: number): string => `line of file ${i}\n`.repeat(200);
const options = { logger: silentLogger, signal: new AbortController().signal };
let repository: Repository;
let root: DirectoryEntry;
let file: DirectoryEntry;
/** Contents that are being fetched. */
let fetched = 0;
let fetchedMost = 0;

beforeAll(async () => {
  await createTest(at('repo'), { version: 1 });
  repository = await openTest(at('repo'), {
    wrap: (storage) =>
      callsThrough(storage, (name, [id], go) => {
        if (name !== 'getBlob' || !String(id).startsWith('p')) return go();
        fetchedMost = Math.max(fetchedMost, ++fetched);
        return (go() as Promise<unknown>).finally(() => {
          fetched--;
        });
      }),
  });
  const compression = { ...DEFAULT_POLICY.compression, compressorName: 'zstd-fastest' };
  const everywhere = { host: '', userName: '', path: '' };
  await putPolicy(repository, everywhere, { ...DEFAULT_POLICY, compression });
  fs.mkdirSync(at('tree'));
  for (let i = 0; i < FILES; i++) fs.writeFileSync(at('tree', `${i}`), textOf(i));
  root = (await backUp(repository, at('tree'))).rootEntry;
  await repository.flush();
  for await (const entries of streamDirectory(repository.contents, root.objectId)) {
    file ??= entries[0] as DirectoryEntry;
  }
});
afterAll(async () => {
  await repository.close();
  fs.rmSync(work, { recursive: true, force: true });
});
beforeEach(() => {
  fetchedMost = 0;
});

describe('contents that were compressed before they were hashed', () => {
  it('are fetched to be compared, a few at a time however many files there are', async () => {
    expect(file.objectId).toMatch(/^Z/);
    fs.writeFileSync(at('tree/7'), textOf(8));
    const result = await restoreTreeInPlace(repository, root, at('tree'), options);
    expect(result).toMatchObject({ changed: 1, unchanged: FILES - 1 });
    expect(fs.readFileSync(at('tree/7'), 'utf8')).toBe(textOf(7));
    expect(fetchedMost).toBeGreaterThan(0);
    expect(fetchedMost).toBeLessThanOrEqual(4);
  });

  it('and are longer or shorter than the snapshot says are refused, and nothing is written', async () => {
    for (const length of [file.size - 1, file.size + 1, 2 ** 40]) {
      const { splitter } = repository;
      const list = encodeIndirect([{ start: 0, length, id: file.objectId, count: 1 }]);
      const listed = await writeObject(repository.contents, list, {
        prefix: '',
        compressor: undefined,
        metadataCompressor: undefined,
        splitter,
        indexSplitter: splitter,
      });
      await repository.flush();
      for (const objectId of [file.objectId, `I${listed}` as ObjectId]) {
        const path = at('volume');
        fs.writeFileSync(path, '');
        fs.truncateSync(path, length);
        const volume = { ...file, size: length, objectId };
        const run = restoreBlocksInPlace(repository, volume, path, options);
        await expect(run).rejects.toThrow(
          `has ${file.size} bytes, but the snapshot says ${length}`,
        );
        expect(fs.statSync(path).blocks).toBe(0);
      }
    }
  });
});
