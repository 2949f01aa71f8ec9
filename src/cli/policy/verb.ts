import type { Command } from 'commander';
import { CodedError, messageOf } from '../../base/index.ts';
import { compressorByName, KOPIA_SPLITTER_NAMES } from '../../codec/index.ts';
import {
  DEFAULT_POLICY,
  deletePolicy,
  formatTarget,
  getDefinedPolicy,
  listPolicies,
  loadPolicyTree,
  parseIgnorePattern,
  parseTarget,
  type Policy,
  policySchema,
  type PolicyTarget,
  putPolicy,
} from '../../snapshot/index.ts';
import type { Repository } from '../../repository/index.ts';
import { openContext } from '../context.ts';
import { parsePolicyJson } from './json.ts';
import { ExitCode } from '../exit.ts';
import { UsageError } from '../usage-error.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { printable, printFact, printJson, printLine } from '../output/terminal.ts';

const TARGET = '<target>';
const TARGET_HELP = '\nA target is (global), @host, user@host or user@host:/path.';

export function addPolicyCommands(program: Command): void {
  const group = program
    .command('policy')
    .description('decide what is kept, ignored and compressed, for all sources or for one');
  addShow(group);
  addSet(group);
  addDelete(group);
  addList(group);
}

function addShow(group: Command): void {
  const example = 'longshore policy show me@host:/data --repo /backup/repo';
  verb(group, `show ${TARGET}`, 'show the settings that apply to a target', example)
    .option('--defined', 'only what is set for this very target, without what it inherits')
    .option(...JSON_OPTION)
    .addHelpText('after', TARGET_HELP)
    .action(async (text: string, options: VerbOptions<{ defined?: boolean }>) => {
      await using context = await openContext(options);
      const target = parseTarget(text);
      const policy =
        options.defined === true
          ? (await getDefinedPolicy(context.repository, target))?.policy
          : (await loadPolicyTree(context.repository, target)).root;
      if (!policy) throw new CodedError('POLICY_NOT_FOUND', `no policy is set for ${text}`);
      printJson(policy);
    });
}

interface SetOptions {
  keepLatest?: string;
  keepHourly?: string;
  keepDaily?: string;
  keepWeekly?: string;
  keepMonthly?: string;
  keepAnnual?: string;
  compression?: string;
  metadataCompression?: string;
  splitter?: string;
  addIgnore?: string[];
  removeIgnore?: string[];
  ignoreFileErrors?: string;
  ignoreDirErrors?: string;
  oneFileSystem?: string;
  fromJson?: string;
}

const SET_OPTIONS = [
  'keepLatest',
  'keepHourly',
  'keepDaily',
  'keepWeekly',
  'keepMonthly',
  'keepAnnual',
  'compression',
  'metadataCompression',
  'splitter',
  'addIgnore',
  'removeIgnore',
  'ignoreFileErrors',
  'ignoreDirErrors',
  'oneFileSystem',
] as const satisfies (keyof SetOptions)[];

const collect = (value: string, before: string[] = []): string[] => [...before, value];

function addSet(group: Command): void {
  const example =
    "longshore policy set '(global)' --keep-daily 14 --compression zstd --repo /backup/repo";
  const command = verb(
    group,
    `set ${TARGET}`,
    'change settings of a target; "inherit" removes one',
    example,
  );
  for (const period of ['latest', 'hourly', 'daily', 'weekly', 'monthly', 'annual']) {
    command.option(`--keep-${period} <n>`, `${period} snapshots to keep`);
  }
  command
    .option('--compression <name>', 'compressor for files, or none')
    .option('--metadata-compression <name>', 'compressor for directories, or none')
    .option('--splitter <name>', "one of Kopia's splitters")
    .option('--add-ignore <pattern>', 'ignore what matches this pattern; may be repeated', collect)
    .option(
      '--remove-ignore <pattern>',
      'remove this pattern from those that are ignored; may be repeated',
      collect,
    )
    .option('--ignore-file-errors <bool>', 'skip files that cannot be read, without an error')
    .option('--ignore-dir-errors <bool>', 'skip directories that cannot be read, without an error')
    .option('--one-file-system <bool>', 'do not enter other file systems that are mounted below')
    .option('--from-json <json>', 'the whole policy as JSON, as `policy show --defined` prints it')
    .option(...JSON_OPTION)
    .addHelpText('after', TARGET_HELP)
    .action(set);
}

async function set(text: string, options: VerbOptions<SetOptions>): Promise<void> {
  const target = parseTarget(text);
  const whole = options.fromJson === undefined ? undefined : parsePolicyJson(options.fromJson);
  const isChange = SET_OPTIONS.some((option) => options[option] !== undefined);
  if (whole && isChange) {
    throw new UsageError(
      '--from-json sets the whole policy: it cannot be combined with other settings',
    );
  }
  if (!whole && !isChange)
    throw new UsageError('nothing to set: name at least one setting (see --help)');
  // Typed values are checked before anything is opened. Stored values are not checked, because the
  // user did not type them.
  const typed = whole ?? change(policySchema.parse({}), options);
  asUsage(() => {
    assertKnown(typed);
  });
  await using context = await openContext(options, { unreadable: 'tell' });
  const { repository } = context;
  if (!whole && !(await repository.manifests.areComplete())) {
    const text = `the settings of ${formatTarget(target)} may be in a part of the repository that cannot be read: run "longshore repository repair" first, or set all of them with --from-json`;
    throw new CodedError('MANIFESTS_UNREADABLE', text);
  }
  const policy = whole ?? change(await definedOrNew(repository, target), options);
  assertKnown(policy);
  await putPolicy(repository, target, policy);
  await repository.flush();
  if (options.json === true) printJson(policy);
  else printLine(`set the policy of ${formatTarget(target)}`);
}

function asUsage(check: () => void): void {
  try {
    check();
  } catch (error) {
    throw new UsageError(messageOf(error));
  }
}

async function definedOrNew(repository: Repository, target: PolicyTarget): Promise<Policy> {
  const defined = await getDefinedPolicy(repository, target);
  return defined?.policy ?? (target.host === '' ? DEFAULT_POLICY : policySchema.parse({}));
}

/** Refuses wrong names now. Otherwise they would fail only in the next backup. */
function assertKnown(policy: Policy): void {
  const { compression, metadataCompression, splitter, files, retention } = policy;
  compressorByName(compression.compressorName ?? '');
  compressorByName(metadataCompression.compressorName ?? '');
  const { algorithm } = splitter;
  if (algorithm && !KOPIA_SPLITTER_NAMES.includes(algorithm)) {
    throw new UsageError(
      `splitter "${algorithm}" is not one of Kopia's: ${KOPIA_SPLITTER_NAMES.join(', ')}`,
    );
  }
  for (const pattern of files.ignore ?? []) parseIgnorePattern(pattern, '');
  for (const [name, value] of Object.entries(retention)) {
    if (typeof value === 'number' && value < 0) {
      throw new UsageError(
        `retention.${name} is ${value}: the number of snapshots to keep must be 0 or more`,
      );
    }
  }
}

const INHERIT = 'inherit';

function number(
  option: string,
  text: string | undefined,
  before: number | undefined,
): number | undefined {
  if (text === undefined) return before;
  if (text === INHERIT) return undefined;
  // Number('') is 0, so an unset variable would expire snapshots.
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw new UsageError(`--${option} "${text}" is neither a number nor "inherit"`);
}

function flag(
  option: string,
  text: string | undefined,
  before: boolean | undefined,
): boolean | undefined {
  if (text === undefined) return before;
  if (text === INHERIT) return undefined;
  if (text === 'true' || text === 'false') return text === 'true';
  throw new UsageError(`--${option} "${text}" is not true, false or inherit`);
}

function name(text: string | undefined, before: string | undefined): string | undefined {
  return text === undefined ? before : text === INHERIT ? undefined : text;
}

function change(before: Policy, options: SetOptions): Policy {
  const { retention, files, errorHandling } = before;
  const removed = options.removeIgnore ?? [];
  const ignore = [...(files.ignore ?? []), ...(options.addIgnore ?? [])];
  return policySchema.parse({
    ...before,
    retention: {
      ...retention,
      keepLatest: number('keep-latest', options.keepLatest, retention.keepLatest),
      keepHourly: number('keep-hourly', options.keepHourly, retention.keepHourly),
      keepDaily: number('keep-daily', options.keepDaily, retention.keepDaily),
      keepWeekly: number('keep-weekly', options.keepWeekly, retention.keepWeekly),
      keepMonthly: number('keep-monthly', options.keepMonthly, retention.keepMonthly),
      keepAnnual: number('keep-annual', options.keepAnnual, retention.keepAnnual),
    },
    files: {
      ...files,
      ignore: [...new Set(ignore)].filter((pattern) => !removed.includes(pattern)),
      oneFileSystem: flag('one-file-system', options.oneFileSystem, files.oneFileSystem),
    },
    errorHandling: {
      ...errorHandling,
      ignoreFileErrors: flag(
        'ignore-file-errors',
        options.ignoreFileErrors,
        errorHandling.ignoreFileErrors,
      ),
      ignoreDirectoryErrors: flag(
        'ignore-dir-errors',
        options.ignoreDirErrors,
        errorHandling.ignoreDirectoryErrors,
      ),
    },
    compression: {
      ...before.compression,
      compressorName: name(options.compression, before.compression.compressorName),
    },
    metadataCompression: {
      ...before.metadataCompression,
      compressorName: name(options.metadataCompression, before.metadataCompression.compressorName),
    },
    splitter: { ...before.splitter, algorithm: name(options.splitter, before.splitter.algorithm) },
  });
}

function addDelete(group: Command): void {
  const example = 'longshore policy delete me@host:/data --repo /backup/repo';
  verb(
    group,
    `delete ${TARGET}`,
    'delete the settings of a target, so that it inherits them all again',
    example,
  )
    .option(...JSON_OPTION)
    .addHelpText('after', TARGET_HELP)
    .action(async (text: string, options: VerbOptions) => {
      const target = parseTarget(text);
      await using context = await openContext(options, { unreadable: 'tell' });
      const { repository } = context;
      if (!(await deletePolicy(repository, target))) {
        throw new CodedError('POLICY_NOT_FOUND', `no policy is set for ${text}`);
      }
      await repository.flush();
      if (options.json === true) printJson({ deleted: formatTarget(target) });
      else printLine(`deleted the policy of ${formatTarget(target)}`);
    });
}

function addList(group: Command): void {
  const example = 'longshore policy list --repo /backup/repo';
  verb(group, 'list', 'list the targets that have their own settings', example)
    .option(...JSON_OPTION)
    .action(async (options: VerbOptions) => {
      await using context = await openContext(options);
      const { policies, damaged } = await listPolicies(context.repository);
      for (const { error } of damaged) {
        process.stderr.write(`longshore: ${printable(error.message)}\n`);
      }
      if (damaged.length > 0) process.exitCode = ExitCode.partly;
      const rows = policies.map(({ id, target, policy }) => ({
        id,
        target: formatTarget(target),
        policy,
      }));
      if (options.json === true) printJson(rows);
      else for (const { id, target } of rows) printFact(`${id}  ${target}`);
    });
}
