import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Hundreds of processes are started: what one has compiled the next ones take.
process.env.NODE_COMPILE_CACHE ??= new URL('node_modules/.cache/node', import.meta.url).pathname;

/**
 * Files that take longest, measured on 24 to 28 November 2026: begun last, one of them would run
 * alone at the end. Those that wait most of the time come early, so that others have the cores
 * meanwhile.
 */
const LONGEST = [
  'node/data-movements',
  'node/pod-volumes',
  'node/plugin',
  'delivery/docs-commands',
  'interop/kopia',
  'delivery/image',
  'delivery/docs-commands-velero',
  'server/repositories/password-change',
  'delivery/docs-commands-reference',
  'agent/hangs',
  'agent/faults',
  'agent/reconcile/restarts',
  'server/velero-cli',
  'server/backups/same-as-velero',
  'simulation/backups',
  'simulation/engine',
  'simulation/nights',
  'simulation/simulation',
  'faults/kill',
  'faults/damage',
  'simulation/spread',
  'config/memory',
  'repository/scratch',
  'agent/pod-volume-mover',
  'cli/hangs',
  'faults/repair',
  'mover/volume',
  'agent/pod-volume-process',
  'uploader/few-buffers',
  'uploader/long-directory/long-directory',
  'uploader/unchanged',
  'cli/cli',
  'cli/password',
  'cli/repository/connections',
  'cli/output/streams',
  'cli/restore/refused-targets',
  'blob/listings',
  'cli/node-agent/verb',
  'cli/node-agent/watch',
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const found = LONGEST.findIndex((name) => moduleId.endsWith(`/test/${name}.test.ts`));
      return found === -1 ? LONGEST.length : found;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/**
 * Many files wait for servers and timers most of the time: on two cores three of them at once take
 * less than two (69 files, measured on 27 November 2026, took 410 s of the cores in 2,683 s). The
 * tests of the whole node run beside them, and leave the cores alone for four fifths of the time.
 */
const WORKERS_MIN = 3;

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    setupFiles: ['test/support/keep-compiled.ts'],
    sequence: { sequencer: LongestFirst },
    testTimeout: 120_000,
    hookTimeout: 120_000,
    // A second, which it is by default, is nothing on a machine that has other work too.
    expect: { poll: { timeout: 30_000 } },
    // Tests run on the sources with Node's own type stripping, as production does from a checkout.
    pool: 'forks',
    maxWorkers: Math.max(WORKERS_MIN, availableParallelism() - 1),
  },
});
