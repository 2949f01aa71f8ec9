import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { sharedPackage } from './package.ts';

/** Whether system calls of a process can be made to fail. */
export const canInject =
  spawnSync('strace', ['-qq', '-e', 'trace=none', 'true'], { stdio: 'ignore' }).status === 0;

export interface Injected {
  /** Undefined when it did not end in time. */
  readonly status: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

export interface InjectOptions {
  /** As strace takes it: `fsync:error=EDQUOT`. */
  readonly inject: string;
  /** Only calls that are about these files. */
  readonly paths?: readonly string[];
  readonly environment: NodeJS.ProcessEnv;
  /** Where stdout and stderr go; else they are returned. */
  readonly output?: number;
  readonly timeoutMs?: number;
}

/** Runs one command line with system calls that fail. */
export function runInjected(parameters: readonly string[], options: InjectOptions): Injected {
  const { inject, paths = [], environment, output = 'pipe', timeoutMs = 60_000 } = options;
  const [call = ''] = inject.split(':');
  const only = paths.flatMap((path) => ['-P', path]);
  const strace = ['-f', '-qq', '-o', '/dev/null', '-e', `trace=${call}`, '-e', `inject=${inject}`];
  // When its time is over the whole group is ended: what strace follows would live on.
  const limit = ['-s', 'KILL', String(timeoutMs / 1000)];
  // Each call of strace costs: the bundle is a few files, the sources are hundreds.
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
