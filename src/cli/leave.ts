import { fsyncSync } from 'node:fs';
import { flushCompileCache } from 'node:module';
import { endProcess, systemCode } from '../base/index.ts';

const OUTPUTS = [1, 2];

/**
 * koffi 3 flushes stdout and stderr to their disk when a process ends, and when stderr cannot be flushed, waits for ever for
 * its own turn to say so. A process whose output is on a disk that fails leaves without that.
 */
export function leaveDespiteOutput(): void {
  process.once('exit', (code) => {
    if (OUTPUTS.every(canFlush)) return;
    flushCompileCache();
    endProcess(code);
  });
}

function canFlush(descriptor: number): boolean {
  try {
    fsyncSync(descriptor);
    return true;
  } catch (error) {
    // A pipe or a terminal: nothing to flush.
    return systemCode(error) === 'EINVAL';
  }
}
