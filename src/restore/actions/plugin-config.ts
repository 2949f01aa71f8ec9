import { CodedError } from '../../base/index.ts';
import { CONFIG_MAPS, type KubeClient } from '../../kube/index.ts';

type PluginConfig = Readonly<Record<string, string>>;

/**
 * Configuration of actions, from labelled ConfigMaps in the server's namespace. `{}` if an action
 * has none. Velero: pkg/plugin/framework/common/plugin_config.go, which reads them for each item.
 * Here one instance serves one restore and reads each ConfigMap once. A mapping of storage classes
 * edited meanwhile must not differ between a volume and its claim. A failed read is retried.
 */
export class PluginConfigs {
  readonly #client: Pick<KubeClient, 'list'>;
  readonly #namespace: string;
  readonly #known = new Map<string, PluginConfig>();

  constructor(client: Pick<KubeClient, 'list'>, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /** `action`: the full name. Throws `AMBIGUOUS_CONFIG`, and errors of the client. */
  async of(action: string, signal: AbortSignal): Promise<PluginConfig> {
    const known = this.#known.get(action);
    if (known) return known;
    const config = await pluginConfig(this.#client, { namespace: this.#namespace, action, signal });
    // Concurrent items all use the first answer.
    const first = this.#known.get(action) ?? config;
    this.#known.set(action, first);
    return first;
  }
}

async function pluginConfig(
  client: Pick<KubeClient, 'list'>,
  { namespace, action, signal }: { namespace: string; action: string; signal: AbortSignal },
): Promise<PluginConfig> {
  const labelSelector = `velero.io/plugin-config,${action}=RestoreItemAction`;
  const found = await client.list(CONFIG_MAPS, { namespace, labelSelector, signal });
  if (found.length > 1) {
    const names = found.map(({ metadata }) => metadata.name).join(' ');
    const text = `found more than one ConfigMap matching label selector "${labelSelector}": [${names}]`;
    throw new CodedError('AMBIGUOUS_CONFIG', text);
  }
  return found[0]?.data ?? {};
}
