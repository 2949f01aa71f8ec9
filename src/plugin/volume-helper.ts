/**
 * `longshore/volume-helper`: answers third-party plugins' questions about volumes, as Velero's
 * pkg/plugin/utils/volumehelper does for plugins in Go.
 *
 *     const helpers = connectVolumeHelpers();
 *     const helper = await helpers.of(backup);
 *     if (await helper.shouldPerformSnapshot({ pvc })) …
 */
import { connectToCluster, REFUSED_MS } from '../kube/index.ts';
import { VolumeHelpers } from './backup-policies.ts';

export {
  type PolicyAction,
  parseVolumePolicies,
  type VolumeHelper,
  type VolumeItem,
  type VolumePolicies,
} from '../volume-policy/index.ts';
export { VolumeHelpers } from './backup-policies.ts';

/** Connects to the cluster of a kubeconfig, or of the process's pod. Throws `NO_CLUSTER`. */
export function connectVolumeHelpers(
  options: { readonly kubeconfig?: string; readonly context?: string } = {},
): VolumeHelpers & Disposable {
  const client = connectToCluster({
    ...options,
    userAgent: 'longshore-volume-helper',
    refusedMs: REFUSED_MS,
  });
  return Object.assign(new VolumeHelpers(client), {
    [Symbol.dispose]: () => {
      client.close();
    },
  });
}
