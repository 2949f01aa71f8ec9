import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { type BlobStorage, faulty } from '../../src/blob/index.ts';
import { Arena } from '../../src/codec/index.ts';
import type { ThreadPool } from '../../src/volume-files/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import {
  type DirectoryEntry,
  listSnapshots,
  readDirectory,
  verifyTrees,
} from '../../src/snapshot/index.ts';
import { type Chunk, DataWriter } from '../../src/uploader/file-data/data-writer.ts';
import { newUploadCounters } from '../../src/uploader/index.ts';
import { assertSameTree, tempDirectory } from '../support/kopia.ts';
import { noise } from '../support/noise.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

const work = tempDirectory('few-buffers');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);

/** The plan of a data mover on S3 with 2 CPUs and 256 MiB. */
const PLAN_OF_A_MOVER = { slabCount: 8, dataLanes: 1, packsInFlight: 0 };

it('an upload with two pack buffers, slow puts and frequent checkpoints comes to its end', async () => {
  const FILES = 4800;
  const bytes = noise('few', FILES * 20_480);
  for (let i = 0; i < FILES; i++) {
    const directory = at(`tree/${i % 40}`);
    if (i < 40) fs.mkdirSync(directory, { recursive: true });
    fs.writeFileSync(join(directory, String(i)), bytes.subarray(i * 20_480, (i + 1) * 20_480));
  }
  await createTest(at('repo'));
  const slowPuts = (storage: BlobStorage): BlobStorage =>
    faulty(storage, ({ operation, when }) =>
      operation === 'put' && when === 'before' ? sleep(30).then(() => undefined) : undefined,
    );
  const options = { wrap: slowPuts, threads: true, memory: PLAN_OF_A_MOVER };
  await using repository = await openTest(at('repo'), options);
  const upload = { checkpointIntervalNs: 200_000_000n, indexIntervalNs: 200_000_000n };
  const { snapshot } = await backUp(repository, at('tree'), upload);
  expect(snapshot.stats).toMatchObject({ fileCount: FILES, errorCount: 0 });
  await using again = await openTest(at('repo'));
  const roots = (await listSnapshots(again)).flatMap(({ rootEntry }) => rootEntry ?? []);
  const verify = { readAll: true, signal: new AbortController().signal };
  expect((await verifyTrees(again, roots, verify)).problems).toEqual([]);
});

/**
 * Where data lies in a sparse file of 28 MiB: many short extents, then few with long holes between.
 */
function writeSparse(path: string): void {
  const file = fs.openSync(path, 'w');
  let at = 0;
  for (let i = 0; at < 28 << 20; i++) {
    const length = i < 600 ? 4096 : 4096 * (1 + ((i * 7) % 900));
    fs.writeSync(file, noise(`extent ${i}`, length), 0, length, at);
    at += length + (i < 600 ? 12_288 : 4096 * (1 + ((i * 13) % 1700)));
  }
  fs.ftruncateSync(file, at);
  fs.closeSync(file);
}

it.each([undefined, 'fastcdc-4m', 'DYNAMIC-8M-BUZHASH', 'FIXED-1M'])(
  'a sparse file of many extents needs few slabs and is cut as if it had no holes, splitter %s',
  async (splitter) => {
    const name = splitter ?? 'default';
    fs.mkdirSync(at(`${name}/sparse`), { recursive: true });
    fs.mkdirSync(at(`${name}/dense`));
    writeSparse(at(`${name}/sparse/file`));
    fs.writeFileSync(at(`${name}/dense/file`), fs.readFileSync(at(`${name}/sparse/file`)));
    const blocks = (kind: string): number => fs.statSync(at(`${name}/${kind}/file`)).blocks;
    expect(blocks('sparse')).toBeLessThan(blocks('dense'));
    await createTest(at(`${name}/repo`));
    const memory = { ...PLAN_OF_A_MOVER, slabCount: 7 };
    await using repository = await openTest(at(`${name}/repo`), { memory });
    const objectOf = async (kind: string): Promise<string | undefined> => {
      const { rootEntry } = await backUp(repository, at(`${name}/${kind}`), { splitter });
      return (await readDirectory(repository, rootEntry.objectId))[0]?.objectId;
    };
    expect(await objectOf('sparse')).toBe(await objectOf('dense'));
  },
);

it('two uploads at once in one process do not write over the bytes of each other', async () => {
  const trees = ['one', 'two'].map((name) => at(`both/${name}`));
  for (const tree of trees) {
    fs.mkdirSync(tree, { recursive: true });
    for (let i = 0; i < 300; i++)
      fs.writeFileSync(join(tree, `${i}`), noise(`${tree}${i}`, 30_000));
    fs.writeFileSync(join(tree, 'large'), noise(`${tree} large`, 20 << 20));
  }
  await createTest(at('both/repo'));
  {
    const options = { memory: PLAN_OF_A_MOVER, threads: true };
    await using repository = await openTest(at('both/repo'), options);
    await Promise.all(trees.map((tree) => backUp(repository, tree)));
  }
  await using again = await openTest(at('both/repo'));
  for (const [i, { rootEntry }] of (await listSnapshots(again)).entries()) {
    const tree = trees.find((path) => path.endsWith(rootEntry?.name ?? ''));
    await restore(again, rootEntry as DirectoryEntry, at(`both/out-${i}`));
    assertSameTree(tree as string, at(`both/out-${i}`));
  }
});

it('a slab goes back only when no thread reads it any more, also where a store fails', async () => {
  const arena = new Arena(1 << 20);
  const done = new Map<string, (error?: Error) => void>();
  const repository = {
    codec: { encryptor: { overheadBytes: 28 } },
    contents: {
      storesCompressed: true,
      isStored: () => false,
      find: () => undefined,
      whenRoom: () => undefined,
      assertWritable: () => undefined,
      timestampAfter: () => 1,
      session: {
        append: (_kind: string, [content]: { contentId: string }[]) =>
          new Promise<void>((resolve, reject) =>
            done.set(content?.contentId ?? '', (error) => {
              if (error) reject(error);
              else resolve();
            }),
          ),
      },
    },
  } as unknown as Repository;
  const pool = { arena } as ThreadPool;
  const writer = new DataWriter(repository, pool, newUploadCounters(), () => undefined);
  const chunk = (text: string): Chunk => ({
    spans: [{ address: arena.allocate(10), length: 10 }],
    length: 10,
    hash: Buffer.from(text),
    compressor: undefined,
  });
  const first = writer.store([chunk('first')]);
  first.catch(() => undefined);
  // The second call waits for its own append, and for the content of the first call.
  let settled = false;
  const second = writer.store([chunk('second'), chunk('first')]).finally(() => (settled = true));
  second.catch(() => undefined);
  const [failFirst, endSecond] = [...done.values()];
  failFirst?.(new Error('a thread died'));
  await expect(first).rejects.toThrow('a thread died');
  expect(settled).toBe(false);
  endSecond?.();
  await expect(second).rejects.toThrow('a thread died');
});
