import { registerHooks } from 'node:module';
import { afterAll, expect, it } from 'vitest';
import { posix } from '../../src/base/index.ts';
import { restoreUnderSwaps } from '../contract/restore-swaps.ts';

const hooks = registerHooks({
  resolve(specifier, context, next) {
    if (specifier === 'koffi') throw new Error('it is not installed');
    return next(specifier, context);
  },
});
afterAll(() => {
  hooks.deregister();
});

it('the native library is missing', () => {
  expect(posix().native).toBe(false);
});
restoreUnderSwaps('without the native library');
