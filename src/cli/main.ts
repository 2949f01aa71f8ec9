import { endProcess } from '../base/index.ts';
import { ExitCode } from './exit.ts';
import { exitDespiteOutput } from './output/exit-despite-output.ts';
import { finishOutput, guardOutput } from './output/streams.ts';
import { startDerivingKey } from './head-start.ts';
import { VERSION } from './version.ts';

/** Time for sockets to close and threads to end. */
const END_GRACE_MS = 5000;

guardOutput();
exitDespiteOutput();
const args = process.argv.slice(2);
startDerivingKey(args);
let code = isVersionOnly(args) ? printVersion() : await runVerb();
const problem = await finishOutput();
if (problem !== undefined) {
  process.stderr.write(`longshore: ${problem}\n`);
  if (code === ExitCode.done) code = ExitCode.failed;
}
process.exitCode = code;
// Anything still alive may be a thread blocked in the kernel. Node would wait for it forever.
setTimeout(() => endProcess(Number(process.exitCode)), END_GRACE_MS).unref();

/** Without the program: scripts and readiness checks ask often. */
function isVersionOnly([first = '', ...rest]: readonly string[]): boolean {
  return rest.length === 0 && ['--version', 'version'].includes(first);
}

function printVersion(): number {
  process.stdout.write(`${VERSION}\n`);
  return ExitCode.done;
}

async function runVerb(): Promise<number> {
  // Imported late, because this loads the whole program.
  const { runCommandLine } = await import('./run.ts');
  return runCommandLine(args);
}
