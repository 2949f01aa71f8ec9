import { flushCompileCache } from 'node:module';
import { endProcess, isPosixLoaded } from '../base/index.ts';

/**
 * koffi 3 flushes stdout and stderr to their disk when a process ends, and when stderr cannot be flushed, waits for ever for
 * its own turn to say so. A process that has loaded it leaves without that: what it wrote is with the kernel.
 */
export function leaveDespiteOutput(): void {
  process.once('exit', (code) => {
    // Profiles are written after this.
    const isProfiled = process.execArgv.some((flag) => /^--(cpu|heap)-prof/.test(flag));
    if (!isPosixLoaded() || isProfiled) return;
    flushCompileCache();
    endProcess(code);
  });
}
