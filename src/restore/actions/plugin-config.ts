import { CodedError } from '../../base/index.ts';
import { CONFIG_MAPS, type KubeClient } from '../../kube/index.ts';

/**
 * What an action was told by the ConfigMap that has its labels, in the server's namespace; `{}` where there is none. Velero:
 * pkg/plugin/framework/common/plugin_config.go. Throws `AMBIGUOUS_CONFIG`, and what the client throws.
 */
export async function pluginConfig(
  client: Pick<KubeClient, 'list'>,
  { namespace, action, signal }: { namespace: string; action: string; signal: AbortSignal },
): Promise<Readonly<Record<string, string>>> {
  const labelSelector = `velero.io/plugin-config,${action}=RestoreItemAction`;
  const found = await client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
  if (found.length > 1) {
    const names = found.map(({ metadata }) => metadata.name).join(' ');
    const text = `found more than one ConfigMap matching label selector "${labelSelector}": [${names}]`;
    throw new CodedError('AMBIGUOUS_CONFIG', text);
  }
  return found[0]?.data ?? {};
}
