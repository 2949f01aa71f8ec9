/**
 * `node bench/plugin-start.ts [STARTS [PLUGINS]]`: start time of `velero-plugin-longshore` until
 * its host knows its address, and its memory then.
 *
 * Velero starts a plugin for every backup, restore and reconcile. Node itself is measured in turn
 * with it, because Node causes most of both figures. PLUGINS: a folder made by image/plugin.sh
 * (`DIRECTORY/plugins`). Its plugin is measured with warm files, and with no file in memory. Prints
 * one line of JSON. Bars: 250 ms and 60 MiB.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const STARTS = Number(process.argv[2] ?? 20);
const PLUGINS = process.argv[3] ?? '';
const UNCACHED_STARTS = 5;
const SETTLE_MS = 500;
const ROOT = new URL('..', import.meta.url).pathname;
const folder = fs.mkdtempSync(join(tmpdir(), 'longshore-plugin-start-'));

interface Start {
  readonly ms: number;
  readonly rssMib: number;
  /** Pages that several processes share count in part. */
  readonly pssMib: number;
  /** Memory that the kernel cannot drop when it runs short: the rest is pages of files. */
  readonly privateMib: number;
}

/** Until its first line on stdout. */
async function start(command: readonly string[]): Promise<Start> {
  const [program = '', ...args] = command;
  const begunMs = performance.now();
  const started = spawn(program, args, {
    env: {
      PATH: `${dirname(process.execPath)}:${process.env.PATH ?? ''}`,
      VELERO_PLUGIN: 'hello',
      PLUGIN_PROTOCOL_VERSIONS: '2',
      TMPDIR: folder,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(started.stdout, 'data');
  const ms = performance.now() - begunMs;
  await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
  const text = fs.readFileSync(`/proc/${started.pid ?? 0}/smaps_rollup`, 'utf8');
  const mib = (name: string): number =>
    [...text.matchAll(new RegExp(`^${name}:\\s+(\\d+) kB`, 'gm'))].reduce(
      (sum, [, kib]) => sum + Number(kib) / 1024,
      0,
    );
  started.kill();
  await once(started, 'exit');
  return { ms, rssMib: mib('Rss'), pssMib: mib('Pss'), privateMib: mib('Private_Dirty') };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return Math.round((sorted[Math.floor(sorted.length / 2)] ?? 0) * 10) / 10;
}
/** Drops only these files from the kernel's page cache. */
function forget(path: string): void {
  for (const entry of fs.readdirSync(path, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const file = join(entry.parentPath, entry.name);
    execFileSync('dd', [`if=${file}`, 'iflag=nocache', 'count=0', 'status=none']);
  }
}
const figuresOf = (starts: readonly Start[]): object => ({
  startMs: median(starts.map(({ ms }) => ms)),
  slowestMs: Math.round(Math.max(...starts.map(({ ms }) => ms))),
  fastestMs: Math.round(Math.min(...starts.map(({ ms }) => ms))),
  rssMib: median(starts.map(({ rssMib }) => rssMib)),
  pssMib: median(starts.map(({ pssMib }) => pssMib)),
  privateMib: median(starts.map(({ privateMib }) => privateMib)),
});

try {
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(folder, 'dist')]);
  const plugin = join(folder, 'dist/velero-plugin-longshore');
  const bare = [process.execPath, '-e', 'console.log(1); setTimeout(() => {}, 60000)'];
  const flags = ['--features=EnableCSI', '--log-level=info'];
  const inImage = PLUGINS === '' ? [] : [join(PLUGINS, 'velero-plugin-longshore'), ...flags];
  const starts: Record<'plugin' | 'node' | 'inImage' | 'uncached', Start[]> = {
    plugin: [],
    node: [],
    inImage: [],
    uncached: [],
  };
  for (let i = 0; i < STARTS; i++) {
    starts.plugin.push(await start([plugin, ...flags]));
    starts.node.push(await start(bare));
    if (PLUGINS !== '') starts.inImage.push(await start(inImage));
  }
  for (let i = 0; PLUGINS !== '' && i < UNCACHED_STARTS; i++) {
    forget(PLUGINS);
    starts.uncached.push(await start(inImage));
  }
  const load = Math.round((loadavg()[0] ?? 0) * 10) / 10;
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: ROOT });
  console.log(
    JSON.stringify({
      scenario: 'plugin-start',
      starts: STARTS,
      plugin: figuresOf(starts.plugin),
      node: figuresOf(starts.node),
      ...(PLUGINS !== '' && {
        inImage: figuresOf(starts.inImage),
        uncached: figuresOf(starts.uncached),
      }),
      fileBytes: fs.statSync(plugin).size,
      load,
      commit: commit.toString().trim(),
      nodeVersion: process.version,
      cpu: cpus()[0]?.model,
    }),
  );
} finally {
  fs.rmSync(folder, { recursive: true, force: true });
}
