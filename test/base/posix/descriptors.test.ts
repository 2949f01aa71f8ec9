import { expect, it } from 'vitest';
import { descriptorsMax, shareOfDescriptors } from '../../../src/base/index.ts';
import { parseLimit } from '../../../src/base/posix/descriptors.ts';

const limits = (soft: string, hard: string): string =>
  [
    'Limit                     Soft Limit           Hard Limit           Units     ',
    'Max processes             63704                63704                processes ',
    `Max open files            ${soft.padEnd(20)} ${hard.padEnd(20)} files     `,
    'Max locked memory         8388608              8388608              bytes     ',
  ].join('\n');

it.each([
  ['256', '1024', 256],
  ['1048576', '1048576', 1_048_576],
  ['unlimited', 'unlimited', Infinity],
])('of %s (soft) and %s (hard) the soft limit counts', (soft, hard, expected) => {
  expect(parseLimit(limits(soft, hard))).toBe(expected);
});

it('where nothing says it, the usual limit counts', () => {
  expect(parseLimit('')).toBe(1024);
  expect(parseLimit('Max processes  1 1 processes')).toBe(1024);
});

it('a share is at least one, and no more than is of use', () => {
  expect(descriptorsMax()).toBeGreaterThan(64);
  expect(shareOfDescriptors(1 / 2, 5)).toBe(5);
  expect(shareOfDescriptors(1 / 2, Infinity)).toBe(Math.floor(descriptorsMax() / 2));
  expect(shareOfDescriptors(1e-9, 5)).toBe(1);
});
