/**
 * `node bench/plugin-start.ts [STARTS]`: how long `velero-plugin-longshore` takes until its host is told where it listens, and what it
 * holds then: Velero starts a plugin for every backup, restore and reconcile. Node itself is measured beside it, in turn, since it is
 * most of both. Prints one line of JSON. Bars: 250 ms and 60 MiB.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const STARTS = Number(process.argv[2] ?? 20);
const SETTLE_MS = 500;
const ROOT = new URL('..', import.meta.url).pathname;
const folder = fs.mkdtempSync(join(tmpdir(), 'longshore-plugin-start-'));

interface Start {
  readonly ms: number;
  readonly rssMib: number;
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
  const status = fs.readFileSync(`/proc/${started.pid ?? 0}/status`, 'utf8');
  const kib = Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]);
  started.kill();
  await once(started, 'exit');
  return { ms, rssMib: kib / 1024 };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return Math.round((sorted[Math.floor(sorted.length / 2)] ?? 0) * 10) / 10;
}
const figuresOf = (starts: readonly Start[]): object => ({
  startMs: median(starts.map(({ ms }) => ms)),
  slowestMs: Math.round(Math.max(...starts.map(({ ms }) => ms))),
  fastestMs: Math.round(Math.min(...starts.map(({ ms }) => ms))),
  rssMib: median(starts.map(({ rssMib }) => rssMib)),
});

try {
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(folder, 'dist')]);
  const plugin = join(folder, 'dist/velero-plugin-longshore');
  const bare = [process.execPath, '-e', 'console.log(1); setTimeout(() => {}, 60000)'];
  const starts: Record<'plugin' | 'node', Start[]> = { plugin: [], node: [] };
  for (let i = 0; i < STARTS; i++) {
    starts.plugin.push(await start([plugin, '--features=EnableCSI', '--log-level=info']));
    starts.node.push(await start(bare));
  }
  const load = Math.round((loadavg()[0] ?? 0) * 10) / 10;
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: ROOT });
  console.log(
    JSON.stringify({
      scenario: 'plugin-start',
      starts: STARTS,
      plugin: figuresOf(starts.plugin),
      node: figuresOf(starts.node),
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
