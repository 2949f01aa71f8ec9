import { Command, CommanderError } from 'commander';
import { isCode, messageOf } from '../base/index.ts';
import { ExitCode } from './exit.ts';
import { addPolicyCommands } from './policy.ts';
import { addRepositoryCommands } from './repository.ts';
import { addSnapshotCommands } from './snapshot.ts';
import { printable } from './terminal.ts';

/** Errors of a disk or a permission that reach the top unmapped still name no stack. */
function exitCodeOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? ExitCode.done : ExitCode.usage;
  if (isCode(error, 'USAGE', 'BAD_SOURCE', 'BAD_POLICY_TARGET', 'BAD_LOCATION'))
    return ExitCode.usage;
  return isCode(error, 'CANCELED') ? ExitCode.interrupted : ExitCode.failed;
}

function report(error: unknown, verbose: boolean): void {
  // Commander has said it already.
  if (error instanceof CommanderError) return;
  process.stderr.write(`longshore: ${printable(messageOf(error))}\n`);
  if (verbose && error instanceof Error) process.stderr.write(`${chainOf(error)}\n`);
}

function chainOf(error: Error): string {
  const stack = error.stack ?? error.message;
  return error.cause instanceof Error ? `${stack}\ncaused by: ${chainOf(error.cause)}` : stack;
}

function createProgram(): Command {
  const program = new Command('longshore')
    .description('Moves volumes into a Kopia repository and back.')
    .version('0.1.0', '--version')
    .exitOverride()
    .showHelpAfterError('(--help shows what is possible)')
    .configureHelp({ showGlobalOptions: false });
  addRepositoryCommands(program);
  addSnapshotCommands(program);
  addPolicyCommands(program);
  const override = (command: Command): void => {
    command.exitOverride();
    for (const child of command.commands) override(child);
  };
  override(program);
  return program;
}

const program = createProgram();
try {
  await program.parseAsync();
} catch (error) {
  report(error, process.argv.includes('--verbose'));
  process.exitCode = exitCodeOf(error);
}
