import { expect, it } from 'vitest';
import { contentIdOf, contentKey } from '../../src/repository/index/content-id.ts';
import { CommittedIndex } from '../../src/repository/index/committed-index.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody } from '../../src/repository/index/index-body.ts';
import type { IndexEntry } from '../../src/repository/index/entry.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { buildIndexBody } from '../../src/repository/index/merge.ts';
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

it.each(['random', 'alike', 'skewed'] as const)(
  'every content of a long body in a file is found, with keys that are %s behind their first bytes',
  (kind) => {
    // The half of them is more than a table of one byte divides.
    const COUNT = 70_000;
    const keyOf = (i: number): string => {
      const mixed = Math.imul(i + 1, 0x9e3779b1) >>> 0;
      const next = { random: mixed >>> 8, alike: 0x80_00_00, skewed: (mixed >>> 8) ** 4 / 2 ** 72 };
      return `abcd${Math.floor(next[kind]).toString(16).padStart(6, '0')}${i.toString(16).padStart(22, '0')}`;
    };
    const made = makeEntries(COUNT).map((entry, i) => ({
      ...entry,
      contentId: contentIdOf('', Buffer.from(keyOf(i), 'hex')),
    }));
    const entries = sortEntries(made);
    const [even, odd] = [0, 1].map((rest) => entries.filter((_, i) => i % 2 === rest));
    // Early versions wrote bodies that name a content several times.
    const twins = (even ?? []).flatMap((entry, i) =>
      i % 50 === 0 ? [{ ...entry, timestampSeconds: entry.timestampSeconds + 1 }, entry] : [entry],
    );
    const body = buildIndexBody(
      twins.map((entry) => ({ entry })),
      0,
    );
    if (!body) throw new Error('no body');
    expect(body.memoryBytes).toBe(0);
    const find = ({ contentId }: IndexEntry): IndexEntry | undefined => {
      const position = body.find(contentKey(contentId));
      return position < 0 ? undefined : body.entryAt(position);
    };
    const newest = new Map<string, IndexEntry>();
    for (const entry of twins.toReversed()) newest.set(entry.contentId, entry);
    expect(
      (even ?? []).filter(
        (entry) => find(entry)?.timestampSeconds !== newest.get(entry.contentId)?.timestampSeconds,
      ),
    ).toEqual([]);
    expect((odd ?? []).filter((entry) => find(entry) !== undefined)).toEqual([]);
    body.close();
  },
);

it.each([1, 2] as const)('rows say what entries say, in version %d of the index', (version) => {
  const index = new CommittedIndex(1 << 20, 1_600_000_100);
  const made = sortEntries(makeEntries(300)).map((entry, i) => ({
    ...entry,
    ...(version === 1 && { compressionHeaderId: 0, encryptionKeyId: 0 }),
    timestampSeconds: 1_600_000_000 + i,
    deleted: i % 3 === 0,
  }));
  // Some are in both.
  for (const part of [
    made.slice(0, 200),
    made.slice(100).map((entry) => ({ ...entry, packOffset: 7 })),
  ])
    index.add(new IndexBody(memorySource(Buffer.from(encodeIndex(version, part)))));
  const rows = Array.from(index.rows(), ({ deleted, packBlobId, packedLength, entry }) => ({
    deleted,
    packBlobId,
    packedLength,
    entry,
  }));
  const entries = [...index.entries()];
  expect(rows.map(({ entry }) => entry)).toEqual(entries);
  expect(
    rows.map(({ deleted, packBlobId, packedLength }) => ({ deleted, packBlobId, packedLength })),
  ).toEqual(
    entries.map(({ deleted, packBlobId, packedLength }) => ({ deleted, packBlobId, packedLength })),
  );
  expect(entries.length).toBeLessThan(300);
  expect(index.contentCount).toBe(300);
  index.add(
    new IndexBody(memorySource(Buffer.from(encodeIndex(version, makeEntries(301).slice(300))))),
  );
  expect(index.contentCount).toBe(301);
  index.close();
});
