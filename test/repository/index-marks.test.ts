import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type ContentId, contentIdOfKey, contentKey } from '../../src/repository/index.ts';
import { CommittedIndex } from '../../src/repository/index/committed-index.ts';
import type { IndexEntry } from '../../src/repository/index/entry.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody } from '../../src/repository/index/index-body.ts';
import { IndexMarks } from '../../src/repository/index/index-marks.ts';
import { encodeIndex, sortEntries } from '../../src/repository/index/index-writer.ts';
import { ScratchFile } from '../../src/repository/index/scratch-file.ts';
import { makeEntries } from '../support/index-blobs.ts';

const KEY_BYTES = 17;

const bodyOf = (entries: readonly IndexEntry[], inFile: boolean): IndexBody => {
  const bytes = encodeIndex(2, sortEntries(entries));
  if (!inFile) return new IndexBody(memorySource(Buffer.from(bytes)));
  const file = new ScratchFile();
  file.write(bytes, 0);
  return new IndexBody(file.toSource());
};

/** Few different ids, so that bodies and marks meet. */
const id = fc
  .tuple(fc.constantFrom('', 'k', 'm', 'x'), fc.nat(3), fc.nat(3), fc.nat(7))
  .map(([prefix, a, b, c]) => {
    const bytes = Buffer.alloc(KEY_BYTES);
    bytes[0] = prefix === '' ? 0 : prefix.charCodeAt(0);
    bytes[1] = a * 80;
    bytes[2] = b * 80;
    bytes[16] = c;
    return contentIdOfKey(bytes);
  });
const entry = fc
  .record({ contentId: id, deleted: fc.boolean(), timestampSeconds: fc.nat(20) })
  .map((given): IndexEntry => ({
    packBlobId: `p${'0'.repeat(32)}-s0123456789abcdef147`,
    packOffset: 32,
    packedLength: 1000,
    originalLength: 900 + given.timestampSeconds,
    formatVersion: 3,
    compressionHeaderId: 0,
    encryptionKeyId: 0,
    ...given,
  }));

it('marks as a set of ids would, in any number of bodies, and keeps to the entry that counts', () => {
  const bodies = fc.array(
    fc.tuple(fc.array(entry, { minLength: 1, maxLength: 300 }), fc.boolean()),
    {
      minLength: 1,
      maxLength: 4,
    },
  );
  fc.assert(
    fc.property(
      bodies,
      fc.array(id),
      fc.nat(25),
      fc.integer({ min: 1, max: 9 }),
      (parts, marked, watermark, batchKeys) => {
        const index = new CommittedIndex(1 << 20, watermark);
        const opened = parts.map(([entries, inFile]) => bodyOf(entries, inFile));
        const marks = new IndexMarks(opened, watermark, KEY_BYTES, batchKeys);
        for (const body of opened) index.add(body);
        const oracle = new Set<ContentId>(marked);
        for (const [i, each] of marked.entries()) {
          if (i % 2 === 0) marks.mark(each);
          else marks.markKey(Buffer.concat([Buffer.of(1), contentKey(each)]), 1);
        }
        const expected = Array.from(index.entries(), (each) => ({
          entry: each,
          prefix: contentKey(each.contentId)[0],
          deleted: each.deleted,
          originalLength: each.originalLength,
          isMarked: oracle.has(each.contentId),
        }));
        // The marks belong to the index as it was, even after it is closed.
        index.close();
        const found = Array.from(
          marks.rows(),
          ({ entry: e, prefix, deleted, originalLength, isMarked }) => ({
            entry: e,
            prefix,
            deleted,
            originalLength,
            isMarked,
          }),
        );
        expect(found).toEqual(expected);
        marks.close();
      },
    ),
    { numRuns: 300 },
  );
});

it('marks each of many contents by tables of their first bytes, in memory and in files', () => {
  const entries = sortEntries(makeEntries(60_000));
  const half = entries.filter((_, i) => i % 2 === 0);
  const rest = entries.filter((_, i) => i % 2 === 1);
  const bodies = [bodyOf(half, true), bodyOf(rest, false)];
  const marks = new IndexMarks(bodies, 0, 1 + (entries[0]?.contentId.length ?? 0) / 2, 5000);
  for (const [i, { contentId }] of entries.entries()) if (i % 3 !== 0) marks.mark(contentId);
  let i = 0;
  const wrong: number[] = [];
  for (const { isMarked, entry: found } of marks.rows()) {
    const isRight = isMarked === (i % 3 !== 0) && found.contentId === entries[i]?.contentId;
    if (!isRight) wrong.push(i);
    i++;
  }
  expect(wrong).toEqual([]);
  expect(i).toBe(entries.length);
  for (const body of bodies) body.close();
  marks.close();
  marks.close();
});

it('tells once that a content is entered, and that the index does not name it', () => {
  const contentId = `k${'a'.repeat(32)}` as ContentId;
  const bodies = [false, true].map((inFile) =>
    bodyOf(
      makeEntries(1).map((each) => ({ ...each, contentId })),
      inFile,
    ),
  );
  const marks = new IndexMarks(bodies, 0, KEY_BYTES);
  expect(marks.enterKey(contentKey(contentId), 0)).toBe(true);
  expect(marks.enterKey(contentKey(contentId), 0)).toBe(false);
  // Entering a key does not mark it, and marking does not enter it.
  expect(Array.from(marks.rows(), ({ isMarked }) => isMarked)).toEqual([false]);
  const other = `k${'b'.repeat(32)}` as ContentId;
  expect(marks.enterKey(contentKey(other), 0)).toBeUndefined();
  marks.close();
  for (const body of bodies) body.close();
});

it('refuses an index whose keys have another length, since it could mark none of them', () => {
  const body = bodyOf(makeEntries(3), false);
  expect(() => new IndexMarks([body], 0, 33)).toThrow(
    expect.objectContaining({ code: 'BAD_INDEX' }),
  );
  body.close();
});

it('refuses an index whose keys are out of order, since look-ups would not find them', () => {
  const stride = KEY_BYTES + 16;
  for (const [count, at] of [
    [5, 3],
    [5000, 2047],
  ] as const) {
    const bytes = Buffer.from(encodeIndex(2, sortEntries(makeEntries(count))));
    const rows = (i: number): Buffer => bytes.subarray(17 + i * stride, 17 + (i + 1) * stride);
    expect(new IndexBody(memorySource(Buffer.from(bytes))).isSorted()).toBe(true);
    const row = Buffer.from(rows(at));
    rows(at).set(rows(at + 1));
    rows(at + 1).set(row);
    const body = new IndexBody(memorySource(bytes));
    expect(body.isSorted()).toBe(false);
    expect(() => new IndexMarks([body], 0, KEY_BYTES)).toThrow(
      expect.objectContaining({ code: 'BAD_INDEX' }),
    );
  }
});
