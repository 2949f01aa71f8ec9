import { type Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { withOutputForm } from '../output/format-options.ts';
import { JSON_OPTION } from '../program.ts';
import type { CheckLocationFlags } from './check.ts';
import type { GetLocationFlags } from './get.ts';

export function addBackupLocationVerb(program: Command): void {
  const noun = program
    .command('backup-location')
    .description('list and check the places where backups are kept');
  withClusterOptions(noun.command('get'))
    .description(
      'list BackupStorageLocations, or those that are named, and say why one cannot be used',
    )
    .argument('[names...]', 'of BackupStorageLocations')
    .addOption(
      new Option('-o, --output <form>', 'a document, names, or wide for the whole table').choices([
        ...['json', 'yaml', 'wide', 'name', 'table'],
      ]),
    )
    .addHelpText(
      'after',
      `
The exit code is 1 where one that is named is not there.

Examples:
  $ longshore backup-location get
  $ longshore backup-location get default -o yaml`,
    )
    .action(async (names: string[], flags: GetLocationFlags) => {
      const { getLocations } = await import('./get.ts');
      await getLocations(names, flags);
    });
  const check = withClusterOptions(noun.command('check'))
    .description(
      'compare what lies in the buckets with what the cluster knows: files that nobody will remove, backups without files; nothing is changed',
    )
    .argument('[names...]', 'of BackupStorageLocations (default: all)')
    .option('-a, --all', 'show also what is only good to know, such as restores of other clusters')
    .option(...JSON_OPTION);
  withOutputForm(check, { isTable: true })
    .addHelpText(
      'after',
      `
It reads names, and the metadata of backups that the cluster does not have. Repositories of volumes are checked by "repository verify-all".

Exit codes: 0 if nothing is wrong, 1 if a location cannot be read, 2 for wrong usage, 3 if something was found that cannot be restored, or that takes
space for nothing.

Examples:
  $ longshore backup-location check
  $ longshore backup-location check default --all -o json`,
    )
    .action(async (names: string[], flags: CheckLocationFlags) => {
      const { checkLocations } = await import('./check.ts');
      await checkLocations(names, flags);
    });
}
