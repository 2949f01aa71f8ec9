import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Hundreds of processes start, and share their compiled code in this cache.
process.env.NODE_COMPILE_CACHE ??= new URL('node_modules/.cache/node', import.meta.url).pathname;

/**
 * Names of the files that take longest, longest first, measured on 29 November 2026. If one of them
 * began last, it would run alone at the end.
 */
const LONGEST = [
  'own-server',
  'pod-volumes',
  'data-movements',
  'plugin',
  'beside-server',
  'kopia',
  'password-change',
  'image',
  'docs-commands',
  'velero-cli',
  'nights',
  'kill',
  'docs-commands-velero',
  'restores',
  'simulation',
  'restarts',
  'crashes',
  'engine',
  'faults',
  'server',
  'backups',
  'rights',
  'install',
  'manifests',
  'damage',
  'groups',
  'spread',
  'long-upload',
  'storms',
  'same-as-velero',
  'two-clusters',
  'docs-commands-reference',
  'memory',
  'maintenance',
  'cli',
  'hangs',
  'scratch',
  'deletion',
  'pod-volume-mover',
  'connections',
  'streams',
  'exposing',
  's3-dialects',
  'password',
  'few-buffers',
  'real-job-pods',
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const found = LONGEST.findIndex((name) => moduleId.endsWith(`/${name}.test.ts`));
      return found === -1 ? LONGEST.length : found;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/**
 * Most files wait for servers and timers. Twelve of the longest took 1,700 s, and 530 s of the
 * cores (29 November 2026). `.ci/run` starts more workers, because all of its peers are there.
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
