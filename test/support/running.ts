import { type ChildProcess, spawn } from 'node:child_process';

/** Runs a script up to its last line, calls back, and ends it. */
export async function whileRunning<T>(
  script: string,
  task: (child: ChildProcess) => Promise<T>,
): Promise<T> {
  const child = spawn('sh', ['-c', `${script}; echo ready; read -r line`], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  try {
    await new Promise((resolve) => child.stdout.once('data', resolve));
    return await task(child);
  } finally {
    child.stdin.end();
    await new Promise((resolve) => child.once('close', resolve));
  }
}
