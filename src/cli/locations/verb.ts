import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { withOutputForm } from '../output-form.ts';
import { JSON_OPTION } from '../program.ts';
import type { CheckLocationFlags } from './check.ts';

export function addBackupLocationVerb(program: Command): void {
  const noun = program
    .command('backup-location')
    .description('check the places where backups are kept');
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
