import { endProcess } from '../base/index.ts';
import { ExitCode } from './exit.ts';
import { leaveDespiteOutput } from './output/exit-despite-output.ts';
import { finishOutput, guardOutput } from './output/streams.ts';
import { startDerivingKey } from './head-start.ts';

/** Time for sockets to close and threads to end. */
const END_GRACE_MS = 5000;

guardOutput();
leaveDespiteOutput();
const args = process.argv.slice(2);
startDerivingKey(args);
// Imported late, because this loads the whole program.
const { runCommandLine } = await import('./run.ts');
let code = await runCommandLine(args);
const problem = await finishOutput();
if (problem !== undefined) {
  process.stderr.write(`longshore: ${problem}\n`);
  if (code === ExitCode.done) code = ExitCode.failed;
}
process.exitCode = code;
// Anything still alive may be a thread blocked in the kernel. Node would wait for it forever.
setTimeout(() => endProcess(Number(process.exitCode)), END_GRACE_MS).unref();
