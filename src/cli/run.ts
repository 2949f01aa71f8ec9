import { Command, CommanderError } from 'commander';
import { isCode, messageOf, redact } from '../base/index.ts';
import { describeChain } from './output/error-chain.ts';
import { ExitCode } from './exit.ts';
import { addCompletionVerb } from './reference/completion.ts';
import { addBrowseVerb } from './browse/verb.ts';
import { addDebugVerb } from './debug/verb.ts';
import { addDevCommands } from './demo/dev-verb.ts';
import { addDataMoverCommands } from './node-agent/data-mover.ts';
import { addPodVolumeCommands } from './node-agent/pod-volume.ts';
import { addHelpVerb } from './reference/help-verb.ts';
import { addNodeAgentCommands } from './node-agent/verb.ts';
import { withOutputForms } from './output/format-options.ts';
import { addPluginVerb } from './plugin/verb.ts';
import { addPolicyCommands } from './policy/verb.ts';
import { addBackupVerb } from './backups/backup.ts';
import { addRestoreVerb } from './backups/restore.ts';
import { addScheduleVerb } from './backups/schedule.ts';
import { addBackupLocationVerb } from './locations/verb.ts';
import { addInstallVerbs } from './install/verbs.ts';
import { addPolicyCheckVerb } from './policy/check.ts';
import { addRepoMaintenanceVerb } from './repository/maintenance-job.ts';
import { addRepositoryCommands } from './repository/verb.ts';
import { addRestoreHelperVerb } from './node-agent/restore-helper.ts';
import { addServerVerb } from './server/verb.ts';
import { addSnapshotCommands } from './snapshot/verb.ts';
import { addStoreCommands } from './repository/store.ts';
import { printable } from './output/terminal.ts';
import { VERSION } from './version.ts';

/** Errors in the typed arguments. The content of the repository does not matter. */
const USAGE_CODES = [
  'USAGE',
  'BAD_SOURCE',
  'BAD_POLICY_TARGET',
  'BAD_LOCATION',
  'BAD_SNAPSHOT_NAME',
  'SHORT_SNAPSHOT_ID',
  'MEMORY_LIMIT_TOO_LOW',
];

/** Unmapped system errors, such as those of a disk, exit with `failed`. */
function exitCodeOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? ExitCode.done : ExitCode.usage;
  if (isCode(error, ...USAGE_CODES)) return ExitCode.usage;
  return isCode(error, 'CANCELED') ? ExitCode.interrupted : ExitCode.failed;
}

/** Prints one sentence on stderr, with the stack if `verbose`. */
function printError(error: unknown, verbose: boolean): void {
  process.stderr.write(`longshore: ${printable(redact(messageOf(error)))}\n`);
  if (!verbose || !(error instanceof Error)) return;
  const lines = describeChain(error).map(printable);
  process.stderr.write(`${lines.join('\n')}\n`);
}

type AddVerbs = (program: Command) => void;

/** The groups of the help, with the names of the verbs that each function adds. */
const GROUPS: readonly (readonly [title: string, verbs: readonly [string, AddVerbs][]])[] = [
  [
    'A cluster and its backups:',
    [
      ['backup', addBackupVerb],
      ['restore', addRestoreVerb],
      ['schedule', addScheduleVerb],
      ['browse', addBrowseVerb],
      ['backup-location', addBackupLocationVerb],
      ['policy-check', addPolicyCheckVerb],
      ['install uninstall', addInstallVerbs],
      ['debug', addDebugVerb],
    ],
  ],
  [
    'Directories, devices and repositories, without a cluster:',
    [
      ['snapshot', addSnapshotCommands],
      ['repository', addRepositoryCommands],
      ['policy', addPolicyCommands],
      ['store', addStoreCommands],
    ],
  ],
  [
    'What pods run:',
    [
      ['server', addServerVerb],
      ['node-agent', addNodeAgentCommands],
      ['restore-helper', addRestoreHelperVerb],
      ['repo-maintenance', addRepoMaintenanceVerb],
      ['data-mover', addDataMoverCommands],
      ['pod-volume', addPodVolumeCommands],
      ['plugin', addPluginVerb],
    ],
  ],
  ['Besides:', [['dev', addDevCommands]]],
];

/**
 * All verbs and their options. If the first word of a command line, `asked`, is a verb, adds it
 * alone. The options of all verbs take a seventh of the time to start.
 */
export function createProgram(asked?: string): Command {
  const program = new Command('longshore')
    .description(
      'Backs up Kubernetes, objects and volumes, and restores them; volumes go into repositories in the format of Kopia.',
    )
    .version(VERSION, '--version')
    .exitOverride()
    .showHelpAfterError('(see --help)')
    // Each verb's options are in its own help.
    .configureHelp({ showGlobalOptions: false, subcommandTerm: (command) => command.name() });
  const found = GROUPS.flatMap(([, verbs]) => verbs).find(([names]) =>
    names.split(' ').includes(asked ?? ''),
  );
  if (found) found[1](program);
  else addAllVerbs(program);
  withOutputForms(program);
  const override = (command: Command): void => {
    command.exitOverride();
    for (const child of command.commands) override(child);
  };
  override(program);
  return program;
}

function addAllVerbs(program: Command): void {
  for (const [title, verbs] of GROUPS) {
    program.commandsGroup(title);
    for (const [, add] of verbs) add(program);
  }
  addCompletionVerb(program);
  addHelpVerb(program);
}

const NOUNS = /^(backup|restore|schedule|backup-location)s?$/;
const VERBS = ['create', 'get', 'describe', 'delete', 'logs'];

/** As in Velero, the verb may come first: `get backups`. Also accepts `version`. */
function nounFirst(parameters: readonly string[]): string[] {
  const [first = '', second = '', ...rest] = parameters;
  const noun = NOUNS.exec(second)?.[1];
  if (noun !== undefined && VERBS.includes(first)) return [noun, first, ...rest];
  if (first === 'version') return ['--version'];
  return [...parameters];
}

/**
 * Runs one command line, without the program's name. Resolves with the exit code. A command that
 * did only a part has set it on the process.
 */
export async function runCommandLine(
  parameters: readonly string[],
  report: (error: unknown, verbose: boolean) => void = printError,
): Promise<number> {
  try {
    const words = nounFirst(parameters);
    await createProgram(words[0]).parseAsync(words, { from: 'user' });
    return Number(process.exitCode ?? ExitCode.done);
  } catch (error) {
    // commander has already printed its own errors.
    if (!(error instanceof CommanderError)) report(error, parameters.includes('--verbose'));
    return exitCodeOf(error);
  }
}
