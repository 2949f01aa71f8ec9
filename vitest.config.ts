import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';

// Hundreds of processes are started: what one has compiled the next ones take.
process.env.NODE_COMPILE_CACHE ??= new URL('node_modules/.cache/node', import.meta.url).pathname;

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    testTimeout: 120_000,
    hookTimeout: 120_000,
    // Tests run on the sources with Node's own type stripping, as production does from a checkout.
    pool: 'forks',
    // Many files wait for servers and timers most of the time: two at once on two cores.
    maxWorkers: Math.max(2, availableParallelism() - 1),
  },
});
