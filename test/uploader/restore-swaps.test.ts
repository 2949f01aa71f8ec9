import { expect, it } from 'vitest';
import { posix } from '../../src/base/index.ts';
import { restoreUnderSwaps } from '../contract/restore-swaps.ts';

it('the native library is there', () => {
  expect(posix().native).toBe(true);
});
restoreUnderSwaps('with the native library');
