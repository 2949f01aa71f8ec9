import type { Command } from 'commander';

/** How commands are told which cluster, and where in it Velero is. */
export function withClusterOptions(command: Command): Command {
  return command
    .option('--kubeconfig <file>', 'kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod)')
    .option('--context <name>', 'context of the kubeconfig')
    .option('-n, --namespace <name>', 'namespace of Velero (default: VELERO_NAMESPACE, or velero)');
}
