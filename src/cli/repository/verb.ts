import type { Command } from 'commander';
import { Option } from 'commander';
import { type Secret, systemClock } from '../../base/index.ts';
import {
  DEFAULT_ENCRYPTION,
  DEFAULT_HASH,
  DEFAULT_SPLITTER,
  ENCRYPTION_NAMES,
  HASH_NAMES,
  KOPIA_SPLITTER_NAMES,
} from '../../codec/index.ts';
import { parseLocation, type StorageModes } from '../../blob/index.ts';
import { environment } from '../../config/index.ts';
import {
  changePassword,
  createFormat,
  defaultParameters,
  keepReserveOf,
  loadFormatToChange,
  type MaintenanceMode,
  putMaintenanceParameters,
  runMaintenance,
  type SafetyLevel,
  TaskProgress,
} from '../../repository/index.ts';
import { planGarbageCollection, DEFAULT_POLICY, putPolicy } from '../../snapshot/index.ts';
import { addConnectionCommands } from './connection-verbs.ts';
import { withClusterOptions } from '../cluster-options.ts';
import type { ClusterFlags } from '../cluster.ts';
import { createLogger, interruptSignal, openContext } from '../context.ts';
import { maintenanceLines } from './maintenance-text.ts';
import type { PasswordFileFlags } from './archive-keys.ts';
import { NewPassword, PasswordPrompt, passwordFilesOption, readPassword } from '../password.ts';
import { openRepositoryStorage } from '../storage-options.ts';
import { formatElapsed } from '../progress/lines.ts';
import {
  type ProgressFlags,
  progressOption,
  startProgress,
  styleOf,
} from '../progress/reporter.ts';
import { maintenanceSample } from '../progress/samples.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import type { ChangePasswordAllFlags } from './change-password-all.ts';
import { addStatus, statusDocument } from './status.ts';
import { addSnapshots } from './snapshots.ts';
import { addRepair } from './repair.ts';
import { addVerify, addVerifyAll } from './verify.ts';
import { printJson, printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export function addRepositoryCommands(program: Command): void {
  const group = program
    .command('repository')
    .description('create, connect, maintain and check a repository');
  addCreate(group);
  addStatus(group);
  addVerify(group);
  addVerifyAll(group);
  addRepair(group);
  addSnapshots(group);
  addMaintain(group);
  addChangePassword(group);
  addChangePasswordAll(group);
  addArchiveKeys(group);
  addConnectionCommands(group);
}

function addCreate(group: Command): void {
  const example = 'longshore repository create --repo /backup/repo';
  verb(group, 'create', 'create a repository in an empty location', example, { isNew: true })
    .addOption(
      new Option('--hash <name>', 'hash function that names contents')
        .choices(HASH_NAMES)
        .default(DEFAULT_HASH),
    )
    .addOption(
      new Option('--encryption <name>', 'encryption algorithm for contents')
        .choices(ENCRYPTION_NAMES)
        .default(DEFAULT_ENCRYPTION),
    )
    .addOption(
      new Option('--splitter <name>', 'splitter that cuts files into contents')
        .choices(KOPIA_SPLITTER_NAMES)
        .default(DEFAULT_SPLITTER),
    )
    .addOption(
      new Option('--format-version <n>', 'version of the repository format')
        .choices(['2', '3'])
        .default('3'),
    )
    .option(
      '--file-mode <mode>',
      'access mode of files, for a directory on a shared disk (default: 0600)',
    )
    .option('--dir-mode <mode>', 'access mode of directories; needs --file-mode (default: 0700)')
    .option(...JSON_OPTION)
    .action(create);
}

interface CreateOptions {
  hash: string;
  encryption: string;
  splitter: string;
  formatVersion: string;
  fileMode?: string;
  dirMode?: string;
}

/** Access modes of a new repository. A user who may read files may also search directories. */
function modesOf({ repo, fileMode, dirMode }: VerbOptions<CreateOptions>): Partial<StorageModes> {
  if (fileMode === undefined && dirMode === undefined) return {};
  if (parseLocation(repo).kind !== 'file') {
    throw new UsageError('--file-mode and --dir-mode are for repositories in a directory');
  }
  // With default file modes, later commands ignore the mode of the directory.
  if (fileMode === undefined) throw new UsageError('--dir-mode needs --file-mode');
  const file = modeOf('--file-mode', fileMode, 0o600, 0o666);
  const directory =
    dirMode === undefined
      ? file | 0o700 | ((file & 0o444) >> 2)
      : modeOf('--dir-mode', dirMode, 0o700, 0o2777);
  return { file, directory };
}

function modeOf(flag: string, text: string, least: number, most: number): number {
  const mode = /^0?[0-7]{3,4}$/.test(text) ? Number.parseInt(text, 8) : -1;
  if (mode >= 0 && (mode & least) === least && (mode & ~most) === 0) return mode;
  const [from, to] = [least, most].map((each) => `0${each.toString(8)}`);
  throw new UsageError(
    `${flag} must be an octal mode with the bits of ${from} and none beyond ${to}, not "${text}"`,
  );
}

async function create(options: VerbOptions<CreateOptions>): Promise<void> {
  const password = await passwordToCreate(options);
  {
    const logger = await createLogger(options);
    await using storage = await openRepositoryStorage(options, logger, {
      create: true,
      cache: false,
      modes: modesOf(options),
    });
    const { hash, encryption, splitter } = options;
    const version = options.formatVersion === '2' ? 2 : 3;
    await createFormat(storage, password, { hash, encryption, splitter, version });
  }
  await using context = await openContext(options, { password });
  const { repository } = context;
  await putPolicy(repository, { host: '', userName: '', path: '' }, DEFAULT_POLICY);
  await putMaintenanceParameters(repository, defaultParameters(repository.client));
  await repository.flush();
  await keepReserveOf(repository);
  const { parameters } = repository.format;
  if (options.json === true) {
    printJson(
      statusDocument(repository.format.uniqueId, parameters, repository.storage.displayName),
    );
    return;
  }
  printLine(`created a repository at ${repository.storage.displayName}`);
  printLine(`  hash ${parameters.hash}, encryption ${parameters.encryption}`);
  printLine(`  splitter ${parameters.splitter}, format version ${parameters.version}`);
  printLine('Keep the password: without it nothing can be restored.');
}

async function passwordToCreate(options: VerbOptions): Promise<Secret> {
  const { passwordFile: file, passwordCommand: command } = options;
  using prompt = new PasswordPrompt();
  const [flag, variable] = ['--password-file', 'LONGSHORE_PASSWORD'];
  return await new NewPassword({ flag, variable, file, command, value: environment.password }).read(
    prompt,
  );
}

function addMaintain(group: Command): void {
  const example = 'longshore repository maintain --repo /backup/repo --mode full --dry-run';
  verb(
    group,
    'maintain',
    'collect garbage, compact indexes and delete packs that nothing needs',
    example,
  )
    .addOption(
      new Option('--mode <mode>', 'which maintenance to run: auto runs what is due')
        .choices(['auto', 'quick', 'full'])
        .default('auto'),
    )
    .addOption(
      new Option(
        '--safety <level>',
        'none deletes at once: only while nobody else uses the repository',
      )
        .choices(['full', 'none'])
        .default('full'),
    )
    .option('--force', 'run even if another client owns maintenance')
    .option('--dry-run', 'only print what would be done')
    .addOption(progressOption())
    .option(...JSON_OPTION)
    .action(maintain);
}

/** For administrators of a cluster. */
function addChangePasswordAll(group: Command): void {
  withClusterOptions(group.command('change-password-all'))
    .description(
      'change the password of all repositories of a cluster and the Secret velero-repo-credentials; run it again if it was killed',
    )
    .option(
      '--new-password-file <file>',
      'file that holds the new password (default: LONGSHORE_NEW_PASSWORD, then a prompt); not needed to finish a change that was begun',
    )
    .option('--undo', 'take back a change that was begun and has not ended')
    .option(
      '--dry-run',
      'only open all repositories, and say what would be changed and what is in the way',
    )
    .option(...JSON_OPTION)
    .option('--verbose', 'log more, and print stack traces with errors')
    .addHelpText(
      'after',
      '\nExample:\n  $ longshore repository change-password-all -n velero --new-password-file new-password',
    )
    .action(async (flags: ChangePasswordAllFlags) => {
      const { changeAll } = await import('./change-password-all.ts');
      await changeAll(flags);
    });
}

/** Exports keys of backups for other clusters. */
function addArchiveKeys(group: Command): void {
  withClusterOptions(group.command('archive-keys'))
    .description(
      'print the keys that sign and encrypt the backups of a cluster; keep them as secret as the password',
    )
    .addOption(passwordFilesOption('print the key of the password in this file, without a cluster'))
    .addHelpText(
      'after',
      `
--password-file may be repeated: a cluster has had a key for each of its passwords. Old archives need the old ones.

Examples:
  $ longshore repository archive-keys --context old | longshore repository add-archive-keys --context new
  $ longshore repository archive-keys --password-file first --password-file second > keys`,
    )
    .action(async (flags: ClusterFlags & PasswordFileFlags) => {
      const { printArchiveKeys } = await import('./archive-keys.ts');
      await printArchiveKeys(flags);
    });
  withClusterOptions(group.command('add-archive-keys'))
    .description(
      'add keys from standard input to the Secret longshore-archive-keys; backups of their clusters can then be checked and decrypted',
    )
    .addHelpText('after', '\nExample:\n  $ longshore repository add-archive-keys -n velero < keys')
    .action(async (flags: ClusterFlags) => {
      const { addArchiveKeys: add } = await import('./archive-keys.ts');
      await add(flags);
    });
}

interface MaintainOptions extends ProgressFlags {
  mode: MaintenanceMode;
  safety: SafetyLevel;
  force?: boolean;
  dryRun?: boolean;
}

async function maintain(options: VerbOptions<MaintainOptions>): Promise<void> {
  await using context = await openContext(options, { unreadable: 'tell' });
  const interrupt = interruptSignal(context.repository);
  const tasks = new TaskProgress();
  const progress = startProgress('repository maintain', styleOf(options), () =>
    maintenanceSample(tasks),
  );
  try {
    const report = await runMaintenance(context.repository, {
      mode: options.mode,
      safety: options.safety,
      force: options.force === true,
      dryRun: options.dryRun === true,
      signal: interrupt.signal,
      logger: context.logger,
      collectGarbage: planGarbageCollection,
      progress: tasks,
    });
    progress.stop();
    const { elapsedSeconds } = progress;
    if (options.json === true) {
      printJson({ ...report, elapsedSeconds });
      return;
    }
    for (const line of maintenanceLines(report)) printLine(line);
    if (report.mode !== 'none') printLine(`took ${formatElapsed(elapsedSeconds)}`);
  } finally {
    progress.stop();
    interrupt.dispose();
  }
}

function addChangePassword(group: Command): void {
  const example =
    'LONGSHORE_NEW_PASSWORD=... longshore repository change-password --repo /backup/repo';
  verb(group, 'change-password', 'change the password; contents are not rewritten', example)
    .option(
      '--new-password-file <file>',
      'file that holds the new password (default: LONGSHORE_NEW_PASSWORD, then a prompt)',
    )
    .action(replacePassword);
}

async function replacePassword(options: VerbOptions<{ newPasswordFile?: string }>): Promise<void> {
  const wanted = new NewPassword({
    flag: '--new-password-file',
    variable: 'LONGSHORE_NEW_PASSWORD',
    file: options.newPasswordFile,
    value: environment.newPassword,
  });
  using prompt = new PasswordPrompt();
  const password = await readPassword(options, prompt);
  const newPassword = await wanted.read(prompt);
  if (newPassword.reveal() === password.reveal()) {
    throw new UsageError('the new password is the same as the old one: nothing was changed');
  }
  const logger = await createLogger(options);
  await using storage = await openRepositoryStorage(options, logger, { cache: false });
  const warn = (message: string): void => {
    logger.warn({ storage: storage.displayName }, message);
  };
  const passwords = [password, newPassword] as const;
  const format = await loadFormatToChange({ storage, clock: systemClock, warn }, passwords);
  await changePassword(storage, format, newPassword);
  printLine('the password has been changed');
}
