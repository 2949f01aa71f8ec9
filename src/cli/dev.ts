import type { Command } from 'commander';
import type { UpFlags } from './dev-up.ts';

export function addDevCommands(program: Command): void {
  const group = program
    .command('dev')
    .description('a cluster without Kubernetes, to try things on this machine');
  group
    .command('up')
    .description('runs an API server with node-agents and a simulated CSI driver until Ctrl-C')
    .option(
      '--directory <path>',
      'where all of it lies: volumes, snapshots, repositories, and the objects of the cluster, which are there again at the next start (default: a new one)',
    )
    .option('--nodes <n>', 'how many nodes, each with its agent', '2')
    .option('--port <port>', 'of the API server (default: any)')
    .option('--log-level <level>', 'debug, info, warning or error', 'info')
    .addHelpText('after', '\nExample:\n  $ longshore dev up --directory /tmp/dev')
    .action(async (flags: UpFlags) => {
      const { runCluster } = await import('./dev-up.ts');
      await runCluster(flags);
    });
}
