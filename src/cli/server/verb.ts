import { Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { LOG_LEVEL_OPTION, logFormatOption } from '../log-options.ts';
import { addBackupFlags, addRestoreFlags } from './backup-flags.ts';
import { CONTROLLERS } from '../../server/compose/controller-names.ts';
import type { ServerFlags } from './run-server.ts';
import { addVeleroServerFlags, flagsWithoutEffect } from './velero-flags.ts';

export function addServerVerb(program: Command): void {
  const command = withClusterOptions(program.command('server'))
    .description(
      "run by a Deployment: look after Velero's objects as Velero's server does, as far as this server has its controllers",
    )
    .addOption(new Option('--kubecontext <name>', 'as --context').hideHelp())
    .option(
      '--controllers <names>',
      `what to run, comma-separated (default: ${CONTROLLERS.join(', ')}); never what a Velero server beside it runs`,
    )
    .option('--disable-controllers <names>', 'what not to run, comma-separated')
    .option(...LOG_LEVEL_OPTION)
    .addOption(logFormatOption())
    .option(
      '--metrics-address <address>',
      'address that serves /metrics, /healthz and /readyz',
      ':8085',
    )
    .option(
      '--tls-certificate <directory>',
      'directory with tls.crt and tls.key for metrics, health and the status page, or self-signed; metrics use plain HTTP without it',
    )
    .option(
      '--status-page-address <address>',
      "address that serves the status page, such as 127.0.0.1:8086 (no login) or :8086 (for those who may list Velero's objects); off without it",
    )
    .option(
      '--status-page-audiences <names>',
      "audiences, comma-separated, of which a visitor's token must have one (default: longshore-status-page); empty for those of the API server",
    )
    .option(
      '--status-page-files',
      'lists and downloads files of backups on the status page, for those who have the verb browse on backups.velero.io',
    )
    .option(
      '--store-validation-frequency <duration>',
      'how often storage locations are validated that do not say it themselves; 0 is once',
      '1m0s',
    )
    .option(
      '--backup-sync-period <duration>',
      'how often backups of storage locations are brought into the cluster where a location does not say it itself',
      '1m0s',
    )
    .option(
      '--default-backup-storage-location <name>',
      'location that is made the default when no location is',
      'default',
    )
    .option(
      '--garbage-collection-frequency <duration>',
      'how often expired backups are looked for; 0 is an hour',
      '1h0m0s',
    )
    .option('--plugin-dir <directory>', "directory of Velero's plugins", '/plugins')
    .option('--features <names>', "features of Velero's, which plugins are told too")
    .addOption(new Option('--uploader-type <type>', 'accepted and ignored').hideHelp())
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
  addBackupFlags(command);
  addRestoreFlags(command);
  addVeleroServerFlags(command);
  command
    .addHelpText(
      'after',
      '\nOther flags of velero server are accepted and have no effect yet; the log names them.\n\nExample:\n  $ longshore server --controllers backup-repo --repo-maintenance-job-configmap repo-maintenance-job-config',
    )
    .action(async (flags: ServerFlags) => {
      const { runServer } = await import('./run-server.ts');
      await runServer(flags, { ineffective: flagsWithoutEffect(command) });
    });
}

/** The values of all server flags if these are given. */
export function serverFlags(given: readonly string[]): ServerFlags {
  const program = new Command();
  addServerVerb(program);
  const [command = program] = program.commands;
  command.parseOptions([...given]);
  return command.opts<ServerFlags & Record<string, unknown>>();
}
