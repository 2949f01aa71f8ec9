import { CodedError } from '../../base/index.ts';
import { CONFIG_MAPS, type KubeClient } from '../../kube/index.ts';

type PluginConfig = Readonly<Record<string, string>>;

/**
 * What actions were told by the ConfigMaps that have their labels, in the server's namespace; `{}`
 * where there is none. Velero: pkg/plugin/framework/common/plugin_config.go, which asks for each
 * item. One instance serves one restore and reads each ConfigMap once: a mapping of storage classes
 * that somebody edits meanwhile must not hold for a volume and not for its claim. A failed read is
 * repeated.
 */
export class PluginConfigs {
  readonly #client: Pick<KubeClient, 'list'>;
  readonly #namespace: string;
  readonly #known = new Map<string, PluginConfig>();

  constructor(client: Pick<KubeClient, 'list'>, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /** `action`: by its whole name. Throws `AMBIGUOUS_CONFIG`, and what the client throws. */
  async of(action: string, signal: AbortSignal): Promise<PluginConfig> {
    const known = this.#known.get(action);
    if (known) return known;
    const config = await pluginConfig(this.#client, { namespace: this.#namespace, action, signal });
    // Another item may have been faster: all of them use the first answer.
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
