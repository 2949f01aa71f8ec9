import type { Command } from 'commander';
import { withClusterOptions } from './cluster-options.ts';
import type { CancelFlags } from './backup-cancel.ts';

export function addBackupVerb(program: Command): void {
  const backup = program.command('backup').description('what is done about backups of the cluster');
  withClusterOptions(backup.command('cancel'))
    .description(
      'end a backup that waits or runs: what it has begun is told to stop, and it ends as Failed or PartiallyFailed',
    )
    .argument('<name>', 'of the Backup')
    .option('--wait', 'return when it has ended')
    .addHelpText(
      'after',
      `
Velero's CLI has no such command; "velero backup delete" of a backup that runs ends it as well, and removes it.

Example:
  $ longshore backup cancel nightly-20261125 --wait`,
    )
    .action(async (name: string, flags: CancelFlags) => {
      const { cancelBackup } = await import('./backup-cancel.ts');
      await cancelBackup(name, flags);
    });
}
