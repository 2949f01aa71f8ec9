import { CONFIG_MAPS, type Discovery, type KubeClient } from '../../../kube/index.ts';
import { type VersionChoice, wantedVersions } from '../../../restore/index.ts';

/** Velero: pkg/restore/prioritize_group_version.go. */
const CONFIG = 'enableapigroupversions';
const KEY = 'restoreResourcesVersionPriority';

/**
 * Chooses by the versions that the cluster serves at each call, and by the users' ConfigMap. Throws
 * `KUBE_*` errors.
 */
export async function versionChoice(
  client: Pick<KubeClient, 'find'>,
  discovery: Pick<Discovery, 'find' | 'lists'>,
  { namespace, signal }: { readonly namespace: string | undefined; readonly signal: AbortSignal },
): Promise<VersionChoice> {
  const config = await client.find(CONFIG_MAPS, { namespace, name: CONFIG }, { signal });
  return {
    wanted: wantedVersions(config?.data?.[KEY] ?? ''),
    served: (type) => {
      const [plural = '', ...parts] = type.split('.');
      const group = parts.join('.');
      const preferred = discovery.find(type);
      const all = discovery.lists.filter(
        (list) => list.group === group && list.resources.some((each) => each.plural === plural),
      );
      return {
        preferred: preferred?.group === group ? preferred.version : undefined,
        all: all.map(({ version }) => version),
      };
    },
  };
}
