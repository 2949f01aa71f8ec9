import { expect, it } from 'vitest';
import { CommittedIndex } from '../../src/repository/index/committed-index.ts';
import { IndexBody, memorySource } from '../../src/repository/index/index-body.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { ScratchFile } from '../../src/repository/index/scratch-file.ts';
import { makeEntries } from '../support/index-blobs.ts';

it('no merged body becomes longer than its offsets reach, and every content is found', () => {
  const BODY_BYTES_MAX = 64 << 10;
  const lengths: number[] = [];
  const openScratch = (): ScratchFile => {
    const file = new ScratchFile();
    const at = lengths.push(0) - 1;
    const write = file.write.bind(file);
    file.write = (bytes, position) => {
      lengths[at] = Math.max(lengths[at] ?? 0, position + bytes.length);
      write(bytes, position);
    };
    return file;
  };
  // Everything goes to scratch files, whose lengths can be seen.
  const index = new CommittedIndex(0, 0, { openScratch, bodyBytesMax: BODY_BYTES_MAX });
  const entries = sortEntries(makeEntries(20_000));
  // Each body holds keys from everywhere, as index blobs do.
  const BODIES = 100;
  for (let i = 0; i < BODIES; i++) {
    const part = entries.filter((_, position) => position % BODIES === i);
    index.add(new IndexBody(memorySource(Buffer.from(encodeIndex(2, part)))));
    index.settle();
  }
  expect(lengths.length).toBeGreaterThan(10);
  // Rows of a merged body are a little longer.
  expect(Math.max(...lengths)).toBeLessThan(BODY_BYTES_MAX * 1.25);
  expect(Math.max(...lengths)).toBeGreaterThan(BODY_BYTES_MAX / 2);
  expect(index.rowCount).toBe(entries.length);
  const lost = entries.filter(
    (entry) => index.find(entry.contentId)?.packOffset !== entry.packOffset,
  );
  expect(lost).toEqual([]);
  expect([...index.entries()]).toEqual(entries);
  index.close();
});
