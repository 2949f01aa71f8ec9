import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import type { ContentId, IndexEntry, Repository } from '../../../src/repository/index.ts';
import { entriesByPack } from '../../../src/repository/verification/entries-by-pack.ts';

const PACK = 'p00112233445566778899aabbccddeeff-s1234567890abcdef';
const entryOf = (i: number): IndexEntry => ({
  contentId: `${i % 2 === 0 ? '' : 'k'}${i.toString(16).padStart(32, '0')}` as ContentId,
  packBlobId: PACK,
  packOffset: 2 ** 31 - 1 - i,
  packedLength: 2 ** 28 + i,
  originalLength: 2 ** 28 + 2 * i,
  timestampSeconds: 2 ** 40 + i,
  deleted: i % 3 === 0,
  formatVersion: 3,
  compressionHeaderId: 0x1100 + i,
  encryptionKeyId: i % 256,
});

const repositoryOf = (entries: Iterable<IndexEntry>): Repository => {
  const all = entries[Symbol.iterator]();
  // Goes on where it was left: enough for one pass.
  const contents = {
    *entries() {
      for (let next = all.next(); next.done !== true; next = all.next()) yield next.value;
    },
  };
  return { contents } as unknown as Repository;
};
const options = { signal: new AbortController().signal, isWanted: () => true };

it('gives back each entry as it was', async () => {
  const entries = Array.from({ length: 100 }, (_, i) => entryOf(i));
  // A content with another hash length, which no repository mixes.
  const other = { ...entryOf(1), contentId: 'ab'.repeat(10) as ContentId };
  const { packs } = await entriesByPack(repositoryOf([...entries, other]), options);
  expect(packs.get(PACK)?.entries()).toEqual([...entries, other]);
});

it('holds a million entries in a heap of 64 MiB', async () => {
  const module = new URL(
    '../../../src/repository/verification/entries-by-pack.ts',
    import.meta.url,
  );
  const code = `(async () => {
    const { entriesByPack } = await import(${JSON.stringify(module.href)});
    const names = Array.from({ length: 1000 }, (_, i) => 'p' + String(i).padStart(32, '0'));
    function* entries({ after }) {
      const first = after === undefined ? 0 : parseInt(after, 16) + 1;
      for (let i = first; i < 1_000_000; i++) {
        yield {
          contentId: i.toString(16).padStart(32, '0'), packBlobId: names[i % 1000],
          packOffset: i, packedLength: i, originalLength: i, timestampSeconds: 1.7e9 + i,
          deleted: false, formatVersion: 2, compressionHeaderId: 0, encryptionKeyId: 0,
        };
      }
    }
    const { signal } = new AbortController();
    const { packs } = await entriesByPack({ contents: { entries } }, { signal, isWanted: () => true });
    require('node:worker_threads').parentPort.postMessage(packs.size);
  })()`;
  const worker = new Worker(code, { eval: true, resourceLimits: { maxOldGenerationSizeMb: 64 } });
  const size = await new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  });
  expect(size).toBe(1000);
}, 60_000);
