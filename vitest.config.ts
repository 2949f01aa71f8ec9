import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    testTimeout: 120_000,
    hookTimeout: 120_000,
    // Tests run on the sources with Node's own type stripping, as production does from a checkout.
    pool: 'forks',
  },
});
