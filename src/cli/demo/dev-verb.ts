import type { Command } from 'commander';
import type { UpFlags } from './dev-up.ts';
import { LOG_LEVEL_OPTION } from '../log-options.ts';

export function addDevCommands(program: Command): void {
  const group = program
    .command('dev')
    .description('a small simulated cluster to try things on this machine, without Kubernetes');
  group
    .command('up')
    .description(
      'run an API server with node-agents, the server that makes backups and restores, and a simulated CSI driver until Ctrl-C',
    )
    .option(
      '--directory <path>',
      "where everything is kept: volumes, snapshots, repositories, and the cluster's objects, which are there again at the next start (default: a new directory)",
    )
    .option('--nodes <n>', 'number of nodes, each with its own agent', '2')
    .option('--port <port>', 'port of the API server (default: any free one)')
    .option(
      '--no-server',
      "only the node-agents: nobody makes backups and restores, for a server of Velero's or your own objects",
    )
    // The default hides the log of the cluster's parts, because the printed help would be lost in
    // it.
    .option(LOG_LEVEL_OPTION[0], LOG_LEVEL_OPTION[1], 'warning')
    .addHelpText('after', '\nExample:\n  $ longshore dev up --directory /tmp/dev')
    .action(async (flags: UpFlags) => {
      const { runCluster } = await import('./dev-up.ts');
      await runCluster(flags);
    });
}
