import { type Command, Option } from 'commander';
import type { ServerFlags } from './node-agent-server.ts';
import type { StatusFlags } from './node-agent-status.ts';
import { JSON_OPTION } from './program.ts';

function withClusterOptions(command: Command): Command {
  return command
    .option('--kubeconfig <file>', 'kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod)')
    .option('--context <name>', 'context of the kubeconfig')
    .option('-n, --namespace <name>', 'namespace that Velero is in (default: VELERO_NAMESPACE)');
}

export function addNodeAgentCommands(program: Command): void {
  const group = program
    .command('node-agent')
    .description('what the DaemonSet runs: moves the volumes of DataUploads and DataDownloads');
  withClusterOptions(group.command('server'))
    .description(
      "claims DataUploads and DataDownloads and looks after them, as Velero's node-agent does",
    )
    .option(
      '--data-movers <names>',
      'values of spec.datamover that are served; velero serves the empty one too',
      'velero',
    )
    .option('--agent-selector <labels>', "labels of the node-agents' own pods", 'role=node-agent')
    .option('--node <name>', 'the node that this is (default: NODE_NAME)')
    .option('--log-level <level>', 'debug, info, warning or error', 'info')
    .addOption(
      new Option('--log-format <format>', 'of the log').choices(['text', 'json']).default('text'),
    )
    .option(
      '--metrics-address <address>',
      'where /metrics, /healthz and /readyz are served',
      ':8085',
    )
    .option('--resource-timeout <duration>', 'for single waits on the API server', '10m')
    .option(
      '--data-mover-prepare-timeout <duration>',
      'how long a volume and its pod may take to be ready; time in queues does not count',
      '30m',
    )
    .option('--node-agent-configmap <name>', "Velero's ConfigMap of node-agent settings")
    .option('--backup-repository-configmap <name>', "Velero's ConfigMap of repository settings")
    .option('--data-mover-retries <n>', 'how often a data mover that died is started again', '3')
    .option(
      '--stall-timeout <duration>',
      'a data mover that moves no byte for this long has failed',
      '15m',
    )
    .option(
      '--takeover-timeout <duration>',
      'operations of an agent that is away for this long are taken over by another agent',
      '5m',
    )
    .option(
      '--fence-timeout <duration>',
      'a restore that is cut off from the API server for this long stops; below --takeover-timeout',
      '4m',
    )
    .option('--progress-interval <duration>', 'how often data movers report progress', '5s')
    .option('--data-mover-image <image>', "of hosting pods (default: the DaemonSet's own)")
    .option('--data-mover-command <command>', 'command of hosting pods, space-separated', '/velero')
    .option(
      '--daemonset <name>',
      'DaemonSet whose pod template hosting pods are made from',
      'node-agent',
    )
    .addOption(new Option('--features <names>', 'accepted and not used, as by Velero').hideHelp())
    .addHelpText(
      'after',
      '\nExample:\n  $ longshore node-agent server --node-agent-configmap node-agent-config',
    )
    .action(async (flags: ServerFlags) => {
      // Other commands need nothing of Kubernetes, and start in half the time without it.
      const { serve } = await import('./node-agent-server.ts');
      await serve(flags);
    });
  withClusterOptions(group.command('status'))
    .description('DataUploads and DataDownloads that are under way, and what each waits for')
    .option('--all', 'those that are over too, with how they ended')
    .option(
      '-w, --watch',
      'goes on until Ctrl-C: a live table, or on a pipe a line for each change',
    )
    .addOption(
      new Option('-o, --output <format>', 'json, yaml, or wide: more columns').choices([
        'json',
        'yaml',
        'wide',
      ]),
    )
    .option('--daemonset <name>', 'only the agents of this DaemonSet (default: all that there are)')
    .option(
      '--data-movers <names>',
      'values of spec.datamover that are served (default: those of the DaemonSets)',
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
      const { showStatus } = await import('./node-agent-status.ts');
      await showStatus(flags);
    });
}
