import { posix } from './posix.ts';

/**
 * Ends this process at once. `process.exit` waits for all threads, so it hangs if a thread is
 * blocked in the kernel. Examples are a read from a dead file server, or from a pipe without a
 * writer.
 */
export function endProcess(code: number): never {
  posix().exitNow(code);
  try {
    // Without the native library, a new program replaces this process. That ends all threads.
    process.execve?.(process.execPath, [process.execPath, '-e', `process.exit(${code})`], {});
  } catch {
    // Falls through to SIGKILL, without the exit code.
  }
  process.kill(process.pid, 'SIGKILL');
  throw new Error('not reached');
}
