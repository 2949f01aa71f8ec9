import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { CancelFlags } from './cancel.ts';
import type { ClusterFlags } from '../cluster.ts';

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
      const { cancelBackup } = await import('./cancel.ts');
      await cancelBackup(name, flags);
    });
  withClusterOptions(backup.command('logs'))
    .description(
      'print the log of a backup from its bucket, then what the data movers of its volumes wrote',
    )
    .argument('<name>', 'of the Backup')
    .addHelpText(
      'after',
      `
It reads the bucket itself: by the credentials of the location, else by those of the environment (AWS_SHARED_CREDENTIALS_FILE and its
like), else by the Secret cloud-credentials; outside of the cluster at config.publicUrl where the location has one. "velero backup logs"
prints the first part only.

Examples:
  $ longshore backup logs nightly-20261125
  $ kubectl -n velero exec deploy/longshore-server -- longshore backup logs nightly-20261125`,
    )
    .action(async (name: string, flags: ClusterFlags) => {
      const { printLogs } = await import('./logs.ts');
      await printLogs('Backup', name, flags);
    });
}
