import { describe, expect, test } from 'vitest';
import { countOf, numberText } from '../../../src/cli/output/numbers.ts';

describe('amounts for people', () => {
  test('are as Intl writes them', () => {
    const values = [0, 7, 999, 1000, 12_345, 999_999, 1_000_000, 12_345_678_901, -1234];
    for (const value of values) expect(numberText(value)).toBe(value.toLocaleString('en-US'));
  });

  test('have a noun that fits', () => {
    expect([countOf(1, 'entries'), countOf(1, 'files'), countOf(2310, 'directories')]).toEqual([
      '1 entry',
      '1 file',
      '2,310 directories',
    ]);
  });
});
