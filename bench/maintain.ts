/**
 * `node bench/maintain.ts [--contents N] [--snapshots N] [--files N] [--churn N] [--collected N]
 * [--latency MS] [--memory-limit 512MiB] [--package DIR] [--kopia] [--dir DIR]`: full maintenance
 * of a repository of millions of contents.
 *
 * The bundle, as users run it, and the real Kopia run in turn. Prints one JSON line for each:
 * seconds, CPU seconds, peak memory and seconds of each task. The latency is added to each read and
 * write of a blob, only for our runs.
 */
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { openStorage } from '../src/blob/index.ts';
import { loadSchedule, openRepository } from '../src/repository/index.ts';
import { buildLargeRepository, PASSWORD } from './large-repository.ts';
import { measure } from './measure.ts';
import { findTool } from './tools.ts';

const { values } = parseArgs({
  options: {
    contents: { type: 'string', default: '1000000' },
    snapshots: { type: 'string' },
    files: { type: 'string', default: '100000' },
    churn: { type: 'string', default: '0.05' },
    collected: { type: 'string', default: '0.1' },
    latency: { type: 'string', default: '0' },
    'memory-limit': { type: 'string', default: '512MiB' },
    /** An installed package to measure in place of this checkout. */
    package: { type: 'string' },
    kopia: { type: 'boolean', default: false },
    /** A repository that an earlier run has built there is used again. */
    dir: { type: 'string', default: '/dev/shm/longshore-maintain' },
    keep: { type: 'boolean', default: false },
  },
});
const ROOT = new URL('..', import.meta.url).pathname;
const contents = Number(values.contents);
const wanted = {
  contents,
  // As many as make a thousand of 25 million contents.
  snapshots: Number(values.snapshots ?? Math.max(2, Math.round(contents / 25_000))),
  files: Number(values.files),
  churn: Number(values.churn),
  collected: Number(values.collected),
};
const at = (name: string): string => join(values.dir, name);

/** The package as npm would install it. */
function install(): string {
  const target = at('package');
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(target, 'dist')]);
  for (const name of ['bin', 'package.json'])
    fs.cpSync(join(ROOT, name), join(target, name), { recursive: true });
  fs.symlinkSync(join(ROOT, 'node_modules'), join(target, 'node_modules'));
  return target;
}

/**
 * Makes each open of a blob, and each deletion, wait: a listing and the times of blobs take no
 * request more on a real store.
 */
function latencyModule(repo: string): string {
  const file = at('latency.mjs');
  fs.writeFileSync(
    file,
    `import fs from 'node:fs/promises';
import { syncBuiltinESMExports } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
for (const name of ['open', 'rm']) {
  const call = fs[name];
  fs[name] = async (path, ...rest) => {
    if (String(path).startsWith(${JSON.stringify(repo)})) await sleep(${values.latency});
    return call(path, ...rest);
  };
}
syncBuiltinESMExports();
`,
  );
  return file;
}

/** Seconds by task, as the schedule says. */
async function taskSeconds(repo: string): Promise<Record<string, unknown>> {
  await using storage = await openStorage(repo);
  const client = { username: 'bench', hostname: 'bench' };
  await using repository = await openRepository({ storage, password: PASSWORD, client });
  const { runs } = await loadSchedule(repository);
  return Object.fromEntries(
    [...runs].map(([task, [run]]) => [
      task,
      run && Number((run.endNs - run.startNs) / 1_000_000n) / 1000,
    ]),
  );
}

function copyOf(repo: string): string {
  const copy = at('copy');
  fs.rmSync(copy, { recursive: true, force: true });
  execFileSync('cp', ['-a', '--sparse=always', '--reflink=auto', repo, copy]);
  return copy;
}

const load = (): number => Number(fs.readFileSync('/proc/loadavg', 'utf8').split(' ')[0]);

async function ours(repo: string): Promise<void> {
  const longshore = join(values.package ?? install(), 'bin', 'longshore');
  const copy = copyOf(repo);
  const options = ['--mode', 'full', '--safety', 'none', '--force', '--progress', 'none'];
  const env = {
    ...process.env,
    LONGSHORE_PASSWORD: PASSWORD.reveal(),
    XDG_CACHE_HOME: at('cache'),
    TMPDIR: values.dir,
    ...(Number(values.latency) > 0 && { NODE_OPTIONS: `--import=${latencyModule(copy)}` }),
  };
  const measured = await measure(
    longshore,
    [
      'repository',
      'maintain',
      '--repo',
      copy,
      ...options,
      '--memory-limit',
      values['memory-limit'],
    ],
    env,
  );
  print('longshore', { ...measured, tasks: await taskSeconds(copy) });
}

async function kopia(repo: string): Promise<void> {
  const tool = findTool('kopia');
  if (!tool) throw new Error('run test/peers/install.sh kopia');
  const copy = copyOf(repo);
  const env = {
    ...process.env,
    HOME: at('kopia-home'),
    KOPIA_PASSWORD: PASSWORD.reveal(),
    KOPIA_CONFIG_PATH: at('kopia-home/config'),
    KOPIA_CACHE_DIRECTORY: at('kopia-home/cache'),
    KOPIA_LOG_DIR: at('kopia-home/log'),
    KOPIA_CHECK_FOR_UPDATES: 'false',
  };
  fs.mkdirSync(at('kopia-home'), { recursive: true });
  const user = ['--override-username=bench', '--override-hostname=bench'];
  execFileSync(tool, ['repository', 'connect', 'filesystem', '--path', copy, ...user], {
    env,
    stdio: 'ignore',
  });
  execFileSync(tool, ['maintenance', 'set', '--owner=me'], { env, stdio: 'ignore' });
  const measured = await measure(tool, ['maintenance', 'run', '--full', '--safety=none'], env);
  print('kopia', { ...measured, tasks: await taskSeconds(copy) });
  fs.rmSync(at('kopia-home'), { recursive: true, force: true });
}

function print(side: string, measured: object): void {
  const latencyMs = side === 'longshore' ? Number(values.latency) : 0;
  console.log(
    JSON.stringify({ bench: 'maintain', side, ...wanted, latencyMs, load: load(), ...measured }),
  );
}

const repo = at(`repo-${wanted.contents}-${wanted.snapshots}`);
try {
  if (!fs.existsSync(repo)) {
    const start = performance.now();
    const building = `${repo}.building`;
    fs.rmSync(building, { recursive: true, force: true });
    await buildLargeRepository(building, wanted);
    fs.renameSync(building, repo);
    console.error(`built in ${((performance.now() - start) / 1000).toFixed(0)} s`);
  }
  await ours(repo);
  if (values.kopia) await kopia(repo);
} finally {
  fs.rmSync(at('copy'), { recursive: true, force: true });
  fs.rmSync(at('package'), { recursive: true, force: true });
  if (!values.keep) fs.rmSync(values.dir, { recursive: true, force: true });
}
