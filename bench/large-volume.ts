/**
 * `node bench/large-volume.ts --size 64GiB [--kind sparse|random|compressible|mixed] [--repo L]
 * [--dir D] [--raw] [--restore] [--memory-limit M]`: backs up a volume of any size.
 *
 * Uses your own storage, and restores the volume if you like. Prints an estimate of the time, shows
 * progress, and prints one JSON line with seconds, rate and peak memory. Its files are removed at
 * the end, except a repository that you named.
 */
import { execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { measure, type Measurement, peakOf } from './measure.ts';

const { values } = parseArgs({
  options: {
    size: { type: 'string', default: '4GiB' },
    kind: { type: 'string', default: 'mixed' },
    repo: { type: 'string' },
    dir: { type: 'string', default: tmpdir() },
    raw: { type: 'boolean', default: false },
    restore: { type: 'boolean', default: false },
    'memory-limit': { type: 'string', default: '256MiB' },
  },
});

const KINDS = ['sparse', 'random', 'compressible', 'mixed'] as const;
type Kind = (typeof KINDS)[number];
const ROOT = new URL('..', import.meta.url).pathname;
const MIB = 2 ** 20;
/**
 * The share of data in a sparse volume. A mixed volume has random data, compressible data and
 * holes.
 */
const SPARSE_SHARE = 1 / 64;

function parseSize(text: string): number {
  const match = /^(\d+)(MiB|GiB|TiB)$/.exec(text);
  const powers: Record<string, number> = { MiB: 2, GiB: 3, TiB: 4 };
  if (!match) throw new Error(`--size "${text}" is not a size such as 64GiB`);
  return Number(match[1]) * 1024 ** (powers[match[2] ?? ''] ?? 0);
}

const bytes = parseSize(values.size);
const kind = values.kind as Kind;
if (!KINDS.includes(kind)) throw new Error(`--kind is one of ${KINDS.join(', ')}`);
const work = fs.mkdtempSync(join(values.dir, 'longshore-volume-'));
const volume = join(work, 'source', 'volume');
const repo = values.repo ?? join(work, 'repo');
const longshore = join(ROOT, 'bin', 'longshore');
const env = { ...process.env, LONGSHORE_PASSWORD: process.env.LONGSHORE_PASSWORD ?? 'bench' };

/** Bytes in stretches of 64 MiB: what stands at each depends on the kind. */
function makeVolume(): void {
  fs.mkdirSync(join(work, 'source'));
  fs.writeFileSync(volume, '');
  fs.truncateSync(volume, bytes);
  const stretch = 64 * MIB;
  const shown = process.stderr.isTTY;
  for (let at = 0, i = 0; at < bytes; at += stretch, i++) {
    const what = kindOf(i);
    if (what !== 'hole') writeStretch(what, Math.min(stretch, bytes - at), at);
    if (shown) process.stderr.write(`\rmaking the volume: ${Math.round((100 * at) / bytes)} %`);
  }
  if (shown) process.stderr.write('\r\x1b[K');
}

function kindOf(i: number): 'random' | 'text' | 'hole' {
  if (kind === 'random') return 'random';
  if (kind === 'compressible') return 'text';
  if (kind === 'sparse') return i % (1 / SPARSE_SHARE) === 0 ? 'random' : 'hole';
  return i % 3 === 0 ? 'random' : i % 3 === 1 ? 'text' : 'hole';
}

function writeStretch(what: 'random' | 'text', length: number, at: number): void {
  const source =
    what === 'random' ? 'cat /dev/urandom' : `yes "line ${at} of a log that says much the same"`;
  const count = Math.ceil(length / MIB);
  const dd = `dd of='${volume}' bs=1M count=${count} seek=${at / MIB} conv=notrunc iflag=fullblock`;
  execFileSync('bash', ['-c', `${source} 2>/dev/null | ${dd} status=none`]);
}

async function run(name: string, parameters: string[]): Promise<Measurement> {
  if (!process.stderr.isTTY) return measure(longshore, parameters, env);
  // The command's own live line shows rate and time left.
  const start = performance.now();
  const child = spawn(longshore, parameters, { env, stdio: ['ignore', 'ignore', 'inherit'] });
  let peak = 0;
  const timer = setInterval(() => {
    peak = Math.max(peak, peakOf(child.pid ?? 0));
  }, 50);
  const code = await new Promise((resolve) => child.once('close', resolve));
  clearInterval(timer);
  if (code !== 0) throw new Error(`${name} failed with ${String(code)}`);
  return { seconds: (performance.now() - start) / 1000, cpuSeconds: 0, peakMiB: peak / 1024 };
}

function report(step: string, { seconds, cpuSeconds, peakMiB }: Measurement): void {
  const rate = bytes / seconds / 1e6;
  console.log(
    JSON.stringify({ step, kind, bytes, seconds, megabytesPerSecond: rate, cpuSeconds, peakMiB }),
  );
}

/** Seen on two cores with everything in memory; storage that is slower makes it longer. */
const BYTES_PER_SECOND = 500e6;
const dataBytes = bytes * (kind === 'sparse' ? SPARSE_SHARE : kind === 'mixed' ? 2 / 3 : 1);
const steps = values.restore ? 2 : 1;
const least = (steps * dataBytes) / BYTES_PER_SECOND;
console.error(`about ${Math.ceil(least)} s or more, after making ${values.size} of ${kind} data`);
try {
  makeVolume();
  const flags = ['--repo', repo, '--memory-limit', values['memory-limit']];
  if (values.repo === undefined) {
    execFileSync(longshore, ['repository', 'create', ...flags], { env });
  }
  const source = values.raw ? [volume, '--block'] : [join(work, 'source')];
  report('backup', await run('backup', ['snapshot', 'create', ...source, ...flags]));
  if (values.restore) {
    const list = execFileSync(longshore, ['snapshot', 'list', '--json', ...flags], { env });
    const snapshots = JSON.parse(String(list)) as { id: string }[];
    const target = values.raw ? [join(work, 'out'), '--block'] : [join(work, 'out')];
    const restore = ['snapshot', 'restore', snapshots.at(-1)?.id ?? '', ...target, '--sparse'];
    report('restore', await run('restore', [...restore, ...flags]));
    const restored = values.raw ? join(work, 'out') : join(work, 'out', 'volume');
    execFileSync('cmp', [volume, restored]);
    console.error('the restored volume equals the source');
  }
} finally {
  fs.rmSync(work, { recursive: true, force: true });
}
