import { type Command, Option } from 'commander';
import { withClusterOptions } from './cluster-options.ts';
import { LOG_LEVEL_OPTION, logFormatOption } from './log-options.ts';
import type { ServerFlags } from './server-run.ts';

/** Written by `velero install` and charts of some versions; Velero's server of others does not know them. */
const IGNORED = [
  '--features <names>',
  '--keep-latest-maintenance-jobs <n>',
  '--maintenance-job-cpu-request <quantity>',
  '--maintenance-job-mem-request <quantity>',
  '--maintenance-job-cpu-limit <quantity>',
  '--maintenance-job-mem-limit <quantity>',
];

export function addServerVerb(program: Command): void {
  const command = withClusterOptions(program.command('server'))
    .description(
      "run by a Deployment: look after Velero's BackupRepositories, as Velero's server does unless it is told not to",
    )
    .requiredOption('--controllers <names>', 'what to run, comma-separated; there is: repository')
    .option(...LOG_LEVEL_OPTION)
    .addOption(logFormatOption())
    .option(
      '--metrics-address <address>',
      'address that serves /metrics, /healthz and /readyz',
      ':8085',
    )
    .option(
      '--default-repo-maintain-frequency <duration>',
      'how often new repositories are maintained',
      '1h0m0s',
    )
    .option('--backup-repository-configmap <name>', "Velero's ConfigMap of repository settings")
    .option(
      '--repo-maintenance-job-configmap <name>',
      "Velero's ConfigMap of settings for maintenance Jobs",
    )
    .option('--concurrent-maintenance <n>', 'how many repositories are maintained at once', '3')
    .option(
      '--deployment <name>',
      'Deployment whose pod template maintenance Jobs are made from',
      'longshore-server',
    )
    .option(
      '--maintenance-job-command <command>',
      'command of maintenance Jobs, space-separated',
      '/velero',
    );
  for (const flags of IGNORED) {
    command.addOption(new Option(flags, 'accepted and ignored').hideHelp());
  }
  command
    .addHelpText(
      'after',
      '\nExample:\n  $ longshore server --controllers repository --repo-maintenance-job-configmap repo-maintenance-job-config',
    )
    .action(async (flags: ServerFlags) => {
      const { runServer } = await import('./server-run.ts');
      await runServer(flags);
    });
}
