import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { sharedPackage } from './package.ts';

/** Whether strace can make system calls of a process fail. */
export const canInject =
  spawnSync('strace', ['-qq', '-e', 'trace=none', 'true'], { stdio: 'ignore' }).status === 0;

export interface Injected {
  /** Undefined after a time-out. */
  readonly status: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

export interface InjectOptions {
  /** In strace's syntax: `fsync:error=EDQUOT`. */
  readonly inject: string;
  /** Only calls with these files. */
  readonly paths?: readonly string[];
  readonly environment: NodeJS.ProcessEnv;
  /** Target of stdout and stderr. Default: they are returned. */
  readonly output?: number;
  readonly timeoutMs?: number;
}

/** Runs a command line with failing system calls. */
export function runInjected(parameters: readonly string[], options: InjectOptions): Injected {
  const { inject, paths = [], environment, output = 'pipe', timeoutMs = 60_000 } = options;
  const [call = ''] = inject.split(':');
  const only = paths.flatMap((path) => ['-P', path]);
  const strace = ['-f', '-qq', '-o', '/dev/null', '-e', `trace=${call}`, '-e', `inject=${inject}`];
  // A time-out ends the whole process group. Otherwise traced processes would live on.
  const limit = ['-s', 'KILL', String(timeoutMs / 1000)];
  // strace makes calls slow: the bundle has a few files, and the sources have hundreds.
  const program = join(sharedPackage(), 'dist/cli.js');
  const node = [process.execPath, '--disable-warning=ExperimentalWarning', program, ...parameters];
  const { status, signal, stdout, stderr } = spawnSync(
    'timeout',
    [...limit, 'strace', ...strace, ...only, ...node],
    { env: environment, encoding: 'utf8', stdio: ['ignore', output, output] },
  );
  const isOver = signal !== null || status === 124 || status === 137;
  return { status: isOver ? undefined : (status ?? undefined), stdout, stderr };
}
