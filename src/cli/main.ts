import { endProcess } from '../base/index.ts';
import { ExitCode } from './exit.ts';
import { leaveDespiteOutput } from './leave.ts';
import { finishOutput, guardOutput } from './output.ts';
import { startDerivingKey } from './head-start.ts';

/** For sockets that close and threads that end. */
const END_GRACE_MS = 5000;

guardOutput();
leaveDespiteOutput();
const args = process.argv.slice(2);
startDerivingKey(args);
// Not among the imports above: all of the program.
const { runCommandLine } = await import('./run.ts');
let code = await runCommandLine(args);
const problem = await finishOutput();
if (problem !== undefined) {
  process.stderr.write(`longshore: ${problem}\n`);
  if (code === ExitCode.done) code = ExitCode.failed;
}
process.exitCode = code;
// What still lives after this may be a thread that the kernel does not let go: Node would wait for
// it forever.
setTimeout(() => endProcess(Number(process.exitCode)), END_GRACE_MS).unref();
