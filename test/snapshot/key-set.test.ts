import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import type { ContentId } from '../../src/repository/index.ts';
import { ContentIdSet } from '../../src/snapshot/index.ts';

const idOf = (n: number, prefix = '', bytes = 16): ContentId =>
  (prefix +
    createHash('sha512')
      .update(String(n))
      .digest('hex')
      .slice(0, bytes * 2)) as ContentId;

it('holds what was added, as it grows, and nothing else', () => {
  const set = new ContentIdSet();
  for (let n = 0; n < 20_000; n++) expect(set.add(idOf(n))).toBe(true);
  expect(set.size).toBe(20_000);
  for (let n = 0; n < 20_000; n++) expect(set.has(idOf(n))).toBe(true);
  for (let n = 20_000; n < 40_000; n++) expect(set.has(idOf(n))).toBe(false);
  expect(set.add(idOf(17))).toBe(false);
  expect(set.size).toBe(20_000);
});

it('tells contents of one hash and different prefixes apart', () => {
  const set = new ContentIdSet();
  const ids = ['', 'k', 'x', 'm', 'g', 'z'].map((prefix) => idOf(1, prefix));
  for (const [i, id] of ids.entries()) {
    expect(set.has(id)).toBe(false);
    set.add(id);
    expect(set.size).toBe(i + 1);
  }
});

it('takes a hash of zeros for a content like any other', () => {
  const set = new ContentIdSet();
  const zeros = '0'.repeat(32) as ContentId;
  expect(set.has(zeros)).toBe(false);
  expect(set.add(zeros)).toBe(true);
  expect(set.has(zeros)).toBe(true);
  expect(set.add(zeros)).toBe(false);
});

it('does as a set of strings, whatever is added, also where all look for the same place', () => {
  const word = fc.constantFrom('00000000', '00000001', 'ffffffff', '01000000');
  const id = fc
    .tuple(fc.constantFrom('', 'k', 'x'), word, word, word)
    .map(([prefix, b, c, d]) => `${prefix}0a0b0c0d${b}${c}${d}` as ContentId);
  fc.assert(
    fc.property(fc.array(id, { maxLength: 200 }), (ids) => {
      const set = new ContentIdSet();
      const oracle = new Set<string>();
      for (const each of ids) {
        expect(set.add(each)).toBe(!oracle.has(each));
        oracle.add(each);
        expect(set.size).toBe(oracle.size);
      }
      for (const each of oracle) expect(set.has(each as ContentId)).toBe(true);
    }),
  );
});
