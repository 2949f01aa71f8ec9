import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The content of a text file; undefined if it cannot be read. */
export type ReadText = (path: string) => string | undefined;

const readText: ReadText = (path) => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
};

/** More than any machine has. Version 1 of control groups writes "no limit" as a huge number. */
const UNLIMITED_BYTES = 2 ** 50;

/** The memory limit of this process's control group or its parents; undefined if there is none. */
export function cgroupMemoryBytes(read: ReadText = readText): number | undefined {
  const limits: number[] = [];
  for (const line of (read('/proc/self/cgroup') ?? '').split('\n')) {
    const [, controllers = '', path = ''] = line.split(/:(.*?):/);
    const isSecond = line.startsWith('0::');
    if (!isSecond && !controllers.split(',').includes('memory')) continue;
    const mount = isSecond ? '/sys/fs/cgroup' : '/sys/fs/cgroup/memory';
    const file = isSecond ? 'memory.max' : 'memory.limit_in_bytes';
    // Inside a container the path may be the host's. The limit at the mount is then the
    // container's.
    for (let at = isSecond ? line.slice(3) : path; ; at = dirname(at)) {
      const limit = Number(read(join(mount, at, file)));
      if (limit > 0 && limit < UNLIMITED_BYTES) limits.push(limit);
      if (at === '/' || at === '.' || at === '') break;
    }
  }
  return limits.length > 0 ? Math.min(...limits) : undefined;
}
