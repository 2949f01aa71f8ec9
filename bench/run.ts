/**
 * `npm run bench [-- --quick] [-- --dir D] [-- --pairs N]`: the engine against the real Kopia, in turn on
 * the same machine: source in the page cache, repository in the same file system (default /dev/shm), no
 * compression, default hash, encryption and splitter on both sides. The real Kopia verifies what each
 * upload wrote. Prints a table and one JSON line per scenario.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { cpus, homedir, loadavg } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { measure, type Measurement, median } from './measure.ts';

const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    dir: { type: 'string', default: '/dev/shm/longshore-bench' },
    pairs: { type: 'string', default: '3' },
  },
});
const { quick, dir } = values;
const root = new URL('..', import.meta.url).pathname;
const KOPIA = join(process.env.PEERS_DIR ?? join(homedir(), '.cache', '.peers'), 'bin', 'kopia');
const LARGE_BYTES = quick ? 64 << 20 : 3 * 2 ** 30;
const SMALL_FILES = quick ? 2000 : 100_000;
const env = {
  ...process.env,
  LONGSHORE_PASSWORD: 'bench',
  KOPIA_PASSWORD: 'bench',
  KOPIA_CONFIG_PATH: join(dir, 'kopia-config'),
  KOPIA_CACHE_DIRECTORY: join(dir, 'kopia-cache'),
  KOPIA_LOG_DIR: join(dir, 'kopia-log'),
  KOPIA_CHECK_FOR_UPDATES: 'false',
};
type Side = 'ours' | 'kopia';
const at = (...names: string[]): string => join(dir, ...names);
const kopia = (...parameters: string[]): string =>
  execFileSync(KOPIA, parameters, {
    env,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
    maxBuffer: 1 << 28,
  });
const LONGSHORE = [process.execPath, join(root, 'dist', 'cli.js')] as const;
const longshore = (...parameters: string[]): string =>
  execFileSync(LONGSHORE[0], [LONGSHORE[1], ...parameters], {
    env,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  });

function command(side: Side, ours: string[], theirs: string[]): Promise<Measurement> {
  return side === 'ours'
    ? measure(LONGSHORE[0], [LONGSHORE[1], ...ours], env)
    : measure(KOPIA, theirs, env);
}

/** A new repository of each side's own making; Kopia is connected to it. */
function newRepository(side: Side): void {
  // Kopia keeps formats and indexes of what lay at this path before.
  for (const name of ['repo', 'kopia-config', 'kopia-cache']) {
    fs.rmSync(at(name), { recursive: true, force: true });
  }
  if (side === 'ours') {
    longshore('repository', 'create', '--repo', at('repo'));
    kopia('repository', 'connect', 'filesystem', '--path', at('repo'));
  } else {
    kopia('repository', 'create', 'filesystem', '--path', at('repo'));
  }
}

const upload = (side: Side, tree: string): Promise<Measurement> =>
  command(
    side,
    ['snapshot', 'create', at(tree), '--repo', at('repo')],
    ['snapshot', 'create', at(tree), '--no-progress'],
  );

function restoreTo(side: Side, target: string): Promise<Measurement> {
  const [newest] = (
    JSON.parse(kopia('snapshot', 'list', '--json')) as { rootEntry: { obj: string } }[]
  ).reverse();
  const root = newest?.rootEntry.obj ?? '';
  return command(
    side,
    ['snapshot', 'restore', root, target, '--repo', at('repo')],
    ['snapshot', 'restore', root, target, '--no-progress'],
  );
}

const verify = (): void => {
  kopia('snapshot', 'verify', '--verify-files-percent=100');
};

function bytesStored(path: string): number {
  return fs.readdirSync(path, { recursive: true, withFileTypes: true }).reduce((sum, entry) => {
    return entry.isFile() ? sum + fs.statSync(join(entry.parentPath, entry.name)).size : sum;
  }, 0);
}

interface Scenario {
  readonly name: string;
  readonly title: string;
  readonly run: (side: Side) => Promise<Measurement>;
}

const restoreScenario =
  (tree: string) =>
  async (side: Side): Promise<Measurement> => {
    newRepository(side);
    await upload(side, tree);
    const result = await restoreTo(side, at('out'));
    execFileSync('diff', ['-rq', '--no-dereference', at(tree), at('out')]);
    fs.rmSync(at('out'), { recursive: true });
    return result;
  };
const uploadScenario =
  (tree: string) =>
  async (side: Side): Promise<Measurement> => {
    newRepository(side);
    const result = await upload(side, tree);
    verify();
    return result;
  };

const scenarios: Scenario[] = [
  {
    name: 'A',
    title: `${LARGE_BYTES / 2 ** 30} GiB of random bytes in one file, first backup`,
    run: uploadScenario('large'),
  },
  { name: 'C', title: 'restore of A', run: restoreScenario('large') },
  { name: 'D', title: `${SMALL_FILES} small files, first backup`, run: uploadScenario('small') },
  {
    name: 'E',
    title: 'D again, unchanged',
    run: async (side) => {
      newRepository(side);
      await upload(side, 'small');
      return upload(side, 'small');
    },
  },
  { name: 'F', title: 'restore of D', run: restoreScenario('small') },
];

/** Log-normal sizes with a median of 4 KiB, from a fixed seed; about 1 GiB in 100,000 files. */
function makeSources(): void {
  fs.rmSync(dir, { recursive: true, force: true });
  fs.mkdirSync(at('large'), { recursive: true });
  execFileSync('bash', ['-c', `head -c ${LARGE_BYTES} /dev/urandom > '${at('large', 'volume')}'`]);
  const pool = Buffer.alloc(32 << 20);
  const volume = fs.openSync(at('large', 'volume'), 'r');
  fs.readSync(volume, pool);
  fs.closeSync(volume);
  let state = 1;
  const random = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
  for (let i = 0; i < SMALL_FILES; i++) {
    const folder = at('small', `d${Math.floor(i / 1000)}`, `e${Math.floor(i / 100) % 10}`);
    if (i % 100 === 0) fs.mkdirSync(folder, { recursive: true });
    const normal = Math.sqrt(-2 * Math.log(random())) * Math.cos(2 * Math.PI * random());
    const bytes = Math.min(4 << 20, Math.round(4096 * Math.exp(1.36 * normal)));
    const start = Math.floor(random() * (pool.length - bytes));
    fs.writeFileSync(join(folder, `f${i}`), pool.subarray(start, start + bytes));
  }
}

execFileSync('npm', ['run', '--silent', 'build'], { cwd: root });
if (!fs.existsSync(KOPIA)) throw new Error(`no kopia at ${KOPIA}: run test/peers/install.sh kopia`);
makeSources();
const load = loadavg()[0] ?? 0;
if (load > 0.5) console.log(`note: the host has other load (${load.toFixed(1)})`);
const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], {
  cwd: root,
  encoding: 'utf8',
}).trim();
const about = { commit, node: process.version, cpu: cpus()[0]?.model, cores: cpus().length };
console.log('| scenario | ours s | cpu s | MiB | kopia s | cpu s | MiB | kopia / ours |');
console.log('|---|---|---|---|---|---|---|---|');
for (const { name, title, run } of scenarios) {
  const results: Record<Side, Measurement[]> = { ours: [], kopia: [] };
  const stored: Record<Side, number> = { ours: 0, kopia: 0 };
  const pairs = quick ? 1 : name === 'E' ? 3 * Number(values.pairs) : Number(values.pairs);
  for (let pair = 0; pair < pairs; pair++) {
    for (const side of ['ours', 'kopia'] as const) {
      results[side].push(await run(side));
      stored[side] = bytesStored(at('repo'));
    }
  }
  const of = (side: Side, field: keyof Measurement): number =>
    median(results[side].map((each) => each[field]));
  const cells = (side: Side): string =>
    `${of(side, 'seconds').toFixed(2)} | ${of(side, 'cpuSeconds').toFixed(2)} | ${of(side, 'peakMiB').toFixed(0)}`;
  const ratio = (of('kopia', 'seconds') / of('ours', 'seconds')).toFixed(2);
  console.log(`| ${name}: ${title} | ${cells('ours')} | ${cells('kopia')} | ${ratio} |`);
  console.log(JSON.stringify({ scenario: name, ...about, stored, results }));
}
fs.rmSync(dir, { recursive: true, force: true });
