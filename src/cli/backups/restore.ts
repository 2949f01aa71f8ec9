import type { Command } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import type { ClusterFlags } from '../cluster.ts';

export function addRestoreVerb(program: Command): void {
  const restore = program
    .command('restore')
    .description('what is done about restores of the cluster');
  withClusterOptions(restore.command('logs'))
    .description(
      'print the log of a restore from its bucket, then what the data movers of its volumes wrote',
    )
    .argument('<name>', 'of the Restore')
    .addHelpText(
      'after',
      `
It reads the bucket itself, as "longshore backup logs" does.

Example:
  $ longshore restore logs nightly-20261125`,
    )
    .action(async (name: string, flags: ClusterFlags) => {
      const { printLogs } = await import('./logs.ts');
      await printLogs('Restore', name, flags);
    });
}
