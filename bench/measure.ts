import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';

export interface Measurement {
  /** Wall-clock seconds. */
  seconds: number;
  /** User and system time of the process and its children. */
  cpuSeconds: number;
  /** Highest resident set of the process, MiB. */
  peakMiB: number;
}

/**
 * How often the high-water mark is read; the kernel keeps it, so only the last moments can be
 * missed.
 */
const POLL_MS = 10;

/** Runs a command to its end and measures it; throws with its output when it fails. */
export async function measure(
  command: string,
  parameters: readonly string[],
  env: NodeJS.ProcessEnv,
  cwd?: string,
): Promise<Measurement> {
  // The shell's own `times` tells what its child used; the child is found below it.
  const script = '"$0" "$@" >&2; code=$?; times; exit $code';
  const start = performance.now();
  const shell = spawn('bash', ['-c', script, command, ...parameters], { env, cwd });
  let [times, output, peakKib] = ['', '', 0];
  shell.stdout.on('data', (data: Buffer) => (times += data.toString()));
  shell.stderr.on('data', (data: Buffer) => (output = (output + data.toString()).slice(-4000)));
  const timer = setInterval(() => {
    peakKib = Math.max(peakKib, ...childrenOf(shell.pid ?? 0).map(peakOf));
  }, POLL_MS);
  const code = await new Promise((resolve) => shell.once('close', resolve));
  clearInterval(timer);
  const seconds = (performance.now() - start) / 1000;
  if (code !== 0) throw new Error(`${command} ${parameters.join(' ')} failed: ${output}`);
  return { seconds, cpuSeconds: childSeconds(times), peakMiB: peakKib / 1024 };
}

function childrenOf(pid: number): number[] {
  try {
    const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return text.trim().split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

/** Highest resident set of a process so far, KiB; 0 when it is gone. */
export function peakOf(pid: number): number {
  try {
    return Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0);
  } catch {
    return 0;
  }
}

/** Second line of `times`: user and system time of the children, as `1m2.345s 0m0.678s`. */
function childSeconds(times: string): number {
  const parts = [...(times.trim().split('\n')[1] ?? '').matchAll(/(\d+)m([\d.]+)s/g)];
  return parts.reduce(
    (sum, [, minutes, seconds]) => sum + Number(minutes) * 60 + Number(seconds),
    0,
  );
}

export const median = (values: readonly number[]): number => {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
};
