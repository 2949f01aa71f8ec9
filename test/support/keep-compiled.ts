import { flushCompileCache } from 'node:module';
import { afterAll } from 'vitest';

// vitest ends the process of a test file by a signal, and then Node would keep nothing that it has
// compiled.
afterAll(() => {
  flushCompileCache();
});
