import { flushCompileCache } from 'node:module';
import { afterAll } from 'vitest';

// vitest ends test files by a signal, and Node would then discard its compile cache.
afterAll(() => {
  flushCompileCache();
});
