import type { Command } from 'commander';

/** Options that select the cluster and Velero's namespace. */
export function withClusterOptions(command: Command): Command {
  return command
    .option('--kubeconfig <file>', 'kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod)')
    .option('--context <name>', 'context of the kubeconfig')
    .option('-n, --namespace <name>', 'namespace of Velero (default: VELERO_NAMESPACE, or velero)');
}
