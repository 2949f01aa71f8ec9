import { flushCompileCache } from 'node:module';
import { inspect } from 'node:util';
import { endProcess, isPosixLoaded, redact } from '../base/index.ts';

/**
 * koffi 3 flushes stdout and stderr to their disk when a process ends, and when stderr cannot be
 * flushed, waits for ever for its own turn to say so. A process that has loaded it leaves without
 * that: what it wrote is with the kernel.
 */
export function leaveDespiteOutput(): void {
  // Node says what nobody has caught after the event below, and so never would.
  process.on('uncaughtExceptionMonitor', (error) => {
    if (!isLeftHere() || process.listenerCount('uncaughtException') > 0) return;
    process.stderr.write(`${redact(inspect(error))}\n`);
  });
  process.once('exit', (code) => {
    if (!isLeftHere()) return;
    flushCompileCache();
    endProcess(code);
  });
}

function isLeftHere(): boolean {
  // Profiles are written after this.
  const isProfiled = process.execArgv.some((flag) => /^--(cpu|heap)-prof/.test(flag));
  return isPosixLoaded() && !isProfiled;
}
