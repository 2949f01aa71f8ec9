import { expect, it } from 'vitest';
import { namedFirst } from '../../../src/base/index.ts';

it('the first of a list are named, and the others counted', () => {
  const upper = (text: string): string => text.toUpperCase();
  expect(namedFirst([], 2, upper)).toBe('');
  expect(namedFirst(['a', 'b'], 2, upper)).toBe('A, B');
  expect(namedFirst(['a', 'b', 'c', 'd'], 2, upper)).toBe('A, B and 2 more');
  expect(namedFirst(['a', 'b', 'c'], 2, upper, '; ')).toBe('A; B and 1 more');
});
