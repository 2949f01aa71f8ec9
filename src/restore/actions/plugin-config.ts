import { CodedError } from '../../base/index.ts';
import { CONFIG_MAPS, type KubeClient } from '../../kube/index.ts';

type PluginConfig = Readonly<Record<string, string>>;

/** So old an answer may be. Our choice: a list takes an API server a tenth of a second, however short it is, and each PVC and pod needs one. */
const AGE_MS_MAX = 5000;

/**
 * What actions were told by the ConfigMaps that have their labels, in the server's namespace; `{}` where there is none. Velero:
 * pkg/plugin/framework/common/plugin_config.go, which asks for each item. What could not be read is asked for again.
 */
export class PluginConfigs {
  readonly #client: Pick<KubeClient, 'list'>;
  readonly #namespace: string;
  readonly #known = new Map<string, { readonly sinceMs: number; readonly config: PluginConfig }>();

  constructor(client: Pick<KubeClient, 'list'>, namespace: string) {
    this.#client = client;
    this.#namespace = namespace;
  }

  /** `action`: by its whole name. Throws `AMBIGUOUS_CONFIG`, and what the client throws. */
  async of(action: string, signal: AbortSignal): Promise<PluginConfig> {
    const sinceMs = performance.now();
    const known = this.#known.get(action);
    if (known && sinceMs - known.sinceMs <= AGE_MS_MAX) return known.config;
    const config = await pluginConfig(this.#client, { namespace: this.#namespace, action, signal });
    this.#known.set(action, { sinceMs, config });
    return config;
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
