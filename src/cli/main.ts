import { endProcess } from '../base/index.ts';
import { ExitCode } from './exit.ts';
import { leaveDespiteOutput } from './leave.ts';
import { finishOutput, guardOutput } from './output.ts';
import { runCommandLine } from './run.ts';

/** For sockets that close and threads that end. */
const END_GRACE_MS = 5000;

guardOutput();
leaveDespiteOutput();
let code = await runCommandLine(process.argv.slice(2));
const problem = await finishOutput();
if (problem !== undefined) {
  process.stderr.write(`longshore: ${problem}\n`);
  if (code === ExitCode.done) code = ExitCode.failed;
}
process.exitCode = code;
// What still lives after this may be a thread that the kernel does not let go: Node would wait for it for ever.
setTimeout(() => endProcess(Number(process.exitCode)), END_GRACE_MS).unref();
