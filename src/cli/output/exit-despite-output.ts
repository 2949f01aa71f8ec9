import { flushCompileCache } from 'node:module';
import { inspect } from 'node:util';
import { endProcess, isPosixLoaded, redact } from '../../base/index.ts';

/**
 * koffi 3 flushes stdout and stderr to disk when a process ends. If stderr cannot be flushed, koffi
 * waits forever to report that. A process that loaded koffi therefore ends without this step. The
 * kernel already has its output.
 */
export function exitDespiteOutput(): void {
  // Node prints uncaught errors after this event, and so would never print them here.
  process.on('uncaughtExceptionMonitor', (error) => {
    if (!skipsFlushOfOutput() || process.listenerCount('uncaughtException') > 0) return;
    process.stderr.write(`${redact(inspect(error))}\n`);
  });
  process.once('exit', (code) => {
    if (!skipsFlushOfOutput()) return;
    flushCompileCache();
    endProcess(code);
  });
}

function skipsFlushOfOutput(): boolean {
  // Node writes profiles after this event.
  const isProfiled = process.execArgv.some((flag) => /^--(cpu|heap)-prof/.test(flag));
  return isPosixLoaded() && !isProfiled;
}
