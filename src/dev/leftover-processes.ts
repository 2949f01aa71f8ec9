import { readFileSync, writeFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { type Logger, messageOf } from '../base/index.ts';

const SUFFIX = '.process';

/** The file that records a pod's process, for the next cluster in case of a kill. */
export const processNote = (directory: string, uid: string): string =>
  join(directory, uid + SUFFIX);

/** Records a process with its start time. Does nothing if the start time is unknown. */
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
 * Ends processes that a killed cluster left behind. Otherwise a left data mover would write beside
 * its replacement until its fence stops it.
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

/** Process ids are reused. The start ticks and the boot id identify a process. */
function beginningOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name, in parentheses, may contain anything. The state is the first field after it.
    const ticks = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    return ticks === undefined ? undefined : `${ticks} ${boot}`;
  } catch {
    return undefined;
  }
}
