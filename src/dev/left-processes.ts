import { readFileSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type Logger, messageOf } from '../base/index.ts';

const SUFFIX = '.process';

/** Where a pod's process is noted, for the cluster that comes after one that was killed. */
export const processNote = (directory: string, uid: string): string =>
  join(directory, uid + SUFFIX);

/**
 * Notes a process so that no other is taken for it later; nothing where the system does not say
 * when it began.
 */
export function noteProcess(path: string, pid: number, logger: Logger): void {
  const began = beginningOf(pid);
  if (began === undefined) return;
  try {
    writeFileSync(path, `${pid} ${began}`, { mode: 0o600 });
  } catch (error) {
    logger.warn({ file: path, error: messageOf(error) }, 'a process could not be recorded');
  }
}

/**
 * Ends what a killed cluster left running: a data mover would write beside the one that takes its
 * place until its fence stops it.
 */
export async function endLeftProcesses(directory: string, logger: Logger): Promise<void> {
  for (const name of await fs.readdir(directory)) {
    if (!name.endsWith(SUFFIX)) continue;
    const path = join(directory, name);
    try {
      const [, pid = '', began] = /^(\d+) (.*)$/.exec(await fs.readFile(path, 'utf8')) ?? [];
      if (began !== undefined && beginningOf(Number(pid)) === began) {
        process.kill(Number(pid), 'SIGKILL');
        logger.info({ pid: Number(pid) }, 'stopped a data mover of an earlier run');
      }
      await fs.rm(path, { force: true });
    } catch (error) {
      logger.warn({ file: path, error: messageOf(error) }, 'a process could not be stopped');
    }
  }
}

/**
 * Numbers of processes are used again: the start of the machine and the ticks since then tell one
 * from another.
 */
function beginningOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, in parentheses, may have anything in it; the state is the first field after it.
    const ticks = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return ticks === undefined ? undefined : `${ticks} ${boot}`;
  } catch {
    return undefined;
  }
}
