import { type Command, Option } from 'commander';
import { withClusterOptions } from '../cluster-options.ts';
import { LOG_LEVEL_OPTION, logFormatOption } from '../log-options.ts';
import type { ServerFlags } from './server.ts';
import type { StatusFlags } from './status.ts';
import { JSON_OPTION } from '../program.ts';

export function addNodeAgentCommands(program: Command): void {
  const group = program
    .command('node-agent')
    .description("run by the DaemonSet: move the volumes of Velero's backups and restores");
  withClusterOptions(group.command('server'))
    .description(
      "claim and process DataUploads, DataDownloads, PodVolumeBackups and PodVolumeRestores, as Velero's node-agent does",
    )
    .option(
      '--data-movers <names>',
      'values of spec.datamover to serve; velero includes the empty one',
      'velero,longshore',
    )
    .option('--agent-selector <labels>', "labels of the node-agents' own pods", 'role=node-agent')
    .option('--node <name>', 'name of this node (default: NODE_NAME)')
    .option(...LOG_LEVEL_OPTION)
    .addOption(logFormatOption())
    .option(
      '--metrics-address <address>',
      'address that serves /metrics, /healthz and /readyz',
      ':8085',
    )
    .option(
      '--tls-certificate <directory>',
      'directory with tls.crt and tls.key for metrics and health, or self-signed; metrics use plain HTTP without it',
    )
    .option('--resource-timeout <duration>', 'longest single wait on the API server', '10m')
    .option(
      '--data-mover-prepare-timeout <duration>',
      'how long a volume and its pod may take to become ready; time in queues does not count',
      '30m',
    )
    .option('--node-agent-configmap <name>', "Velero's ConfigMap of node-agent settings")
    .option('--backup-repository-configmap <name>', "Velero's ConfigMap of repository settings")
    .option(
      '--data-mover-retries <n>',
      'how many times a data mover that died is started again',
      '3',
    )
    .option(
      '--stall-timeout <duration>',
      'how long a data mover may move nothing before it has failed',
      '15m',
    )
    .option(
      '--takeover-timeout <duration>',
      'how long an agent may be gone before another one takes over its operations',
      '5m',
    )
    .option(
      '--fence-timeout <duration>',
      'how long a restore goes on when it is cut off from the API server; less than --takeover-timeout',
      '4m',
    )
    .option('--progress-interval <duration>', 'how often data movers report progress', '5s')
    .option('--data-mover-image <image>', 'image of hosting pods (default: that of the DaemonSet)')
    .option('--data-mover-command <command>', 'command of hosting pods, space-separated', '/velero')
    .option(
      '--daemonset <name>',
      'DaemonSet whose pod template hosting pods are made from',
      'node-agent',
    )
    .addOption(new Option('--features <names>', 'accepted and ignored, as by Velero').hideHelp())
    .addHelpText(
      'after',
      '\nExample:\n  $ longshore node-agent server --node-agent-configmap node-agent-config',
    )
    .action(async (flags: ServerFlags) => {
      // Loaded late: other commands do not need Kubernetes, and start in half the time.
      const { serve } = await import('./server.ts');
      await serve(flags);
    });
  withClusterOptions(group.command('status'))
    .description(
      'list the DataUploads, DataDownloads, PodVolumeBackups and PodVolumeRestores that are under way, and what each is waiting for',
    )
    .option('--all', 'include those that have ended, and how')
    .option(
      '-w, --watch',
      'keep watching until Ctrl-C: a live table, or one line for each change when piped',
    )
    .addOption(
      new Option('-o, --output <format>', 'json, yaml, or wide for more columns').choices([
        'json',
        'yaml',
        'wide',
      ]),
    )
    .option('--daemonset <name>', 'only the agents of this DaemonSet (default: all of them)')
    .option(
      '--data-movers <names>',
      'values of spec.datamover that count as served (default: those of the DaemonSets)',
    )
    .option(
      '--agent-selector <labels>',
      "labels of the node-agents' own pods (default: those of the DaemonSets)",
    )
    .addOption(new Option(...JSON_OPTION).hideHelp())
    .addHelpText(
      'after',
      '\nExamples:\n  $ longshore node-agent status -n velero\n  $ longshore node-agent status --watch',
    )
    .action(async (flags: StatusFlags) => {
      const { showStatus } = await import('./status.ts');
      await showStatus(flags);
    });
}
