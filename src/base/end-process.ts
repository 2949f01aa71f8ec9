import { posix } from './posix.ts';

/**
 * Ends this process at once. `process.exit` waits for all threads, and so forever when one of them
 * is blocked in the kernel: by a read from a file server that is gone, by a pipe that nobody writes
 * to.
 */
export function endProcess(code: number): never {
  posix().exitNow(code);
  try {
    // Without the native library: a new program takes the place of this one, and no thread outlives
    // that.
    process.execve?.(process.execPath, [process.execPath, '-e', `process.exit(${code})`], {});
  } catch {
    // Then without the exit code.
  }
  process.kill(process.pid, 'SIGKILL');
  throw new Error('not reached');
}
