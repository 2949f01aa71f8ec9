import { readFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { CodedError, messageOf, randomBytes, systemClock } from '../../base/index.ts';
import { checkStorage, type CheckResult, openStorage, parseLocation } from '../../blob/index.ts';
import { parseBackupStorageLocation, repositoryLocation } from '../../config/index.ts';
import { interruptSignal } from '../context.ts';
import { ExitCode } from '../exit.ts';
import { JSON_OPTION } from '../program.ts';
import { printable, printJson, printLine } from '../output/terminal.ts';

/** A person waits: a transfer without progress for this long has failed. */
const STALL_MS = 15_000;
const NAME_WIDTH = 18;

export function addStoreCommands(program: Command): void {
  const group = program
    .command('store')
    .description('check a storage, or find the location of a repository');
  group
    .command('check <location>')
    .description('check that a storage does what a repository needs, and say what to fix')
    .option(...JSON_OPTION)
    .addHelpText(
      'after',
      `
It lists, writes, reads, overwrites and deletes one small blob, and leaves nothing behind.
The exit code is 1 if anything fails.

Example:
  $ longshore store check 's3://backups/cluster-1/?region=eu-central-1'`,
    )
    .action(check);
  group
    .command('location <file>')
    .description(
      "print the location of a namespace's repository, from Velero's BackupStorageLocation",
    )
    .requiredOption('--volume-namespace <namespace>', 'namespace of the backed-up volumes')
    .option('--credentials-file <file>', 'file with the content of the Secret in spec.credential')
    .option('--ca-file <file>', 'file with the content of caCert or caCertRef')
    .addHelpText(
      'after',
      `
Example:
  $ kubectl -n velero get backupstoragelocation default -o yaml > bsl.yaml
  $ longshore store location bsl.yaml --volume-namespace shop --credentials-file ./credentials`,
    )
    .action(location);
}

async function check(text: string, options: { json?: boolean }): Promise<void> {
  const { kind } = parseLocation(text);
  const interrupt = interruptSignal();
  const results: CheckResult[] = [];
  const add = (result: CheckResult): void => {
    results.push(result);
    if (options.json !== true) printResult(result);
  };
  try {
    await using storage = await openStorage(text, {
      stallMs: STALL_MS,
      mayReplace: true,
      isRepository: true,
    });
    const parts = { kind, clock: systemClock, random: randomBytes, signal: interrupt.signal };
    for await (const result of checkStorage(storage, parts)) add(result);
  } catch (error) {
    if (interrupt.signal.aborted) throw error;
    add({ name: 'open', ok: false, detail: messageOf(error), seconds: 0 });
  } finally {
    interrupt.dispose();
  }
  const failed = results.filter(({ ok }) => !ok).length;
  if (options.json === true) printJson({ location: text, ok: failed === 0, results });
  else printLine(failed === 0 ? 'all checks passed' : `${failed} of ${results.length} failed`);
  if (failed > 0) process.exitCode = ExitCode.failed;
}

function printResult({ name, ok, detail, fix, seconds }: CheckResult): void {
  const time = `${Math.round(seconds * 1000)} ms`;
  printLine(
    `${ok ? 'ok    ' : 'FAILED'} ${name.padEnd(NAME_WIDTH)} ${printable(detail)} (${time})`,
  );
  if (fix !== undefined) printLine(`       ${' '.repeat(NAME_WIDTH)} ${fix}`);
}

interface LocationOptions {
  volumeNamespace: string;
  credentialsFile?: string;
  caFile?: string;
}

async function location(file: string, options: LocationOptions): Promise<void> {
  let object: unknown;
  try {
    // Loaded late: as large as all of our code, and no other verb needs it.
    const { parse } = await import('../output/yaml.ts');
    object = parse(await readFile(file, 'utf8'));
  } catch (cause) {
    throw new CodedError('BAD_STORAGE_LOCATION', `cannot read ${file}: ${messageOf(cause)}`, {
      cause,
    });
  }
  const { volumeNamespace, credentialsFile, caFile } = options;
  const found = parseBackupStorageLocation(object);
  printLine(repositoryLocation(found, volumeNamespace, { credentialsFile, caFile }));
}
