import {
  type KubeObject,
  type PersistentVolumeClaim,
  type Pod,
  PODS,
  PVCS,
} from '../../kube/index.ts';
import type { Backup, CallContext, ItemBlockAction, ResourceIdentifier } from '../contract.ts';
import { identifier, patiently, type Setting } from './setting.ts';
import { volumesOf } from './volume-choice.ts';

/**
 * What is backed up together with a PVC: its volume, the pods that have it mounted, since their hooks are for its snapshot too, and the
 * PVCs of its group.
 */
export class PvcBlock implements ItemBlockAction {
  readonly #setting: Setting;
  readonly #pods = new Map<string, Promise<Pod[]>>();

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async relatedItems(
    item: KubeObject,
    backup: Backup,
    { signal }: CallContext,
  ): Promise<readonly ResourceIdentifier[]> {
    const pvc = item as PersistentVolumeClaim;
    const { name, namespace = '' } = pvc.metadata;
    const volume = pvc.spec.volumeName ?? '';
    if (pvc.status?.phase !== 'Bound' || volume === '') return [];
    const pods = (await this.#podsOf(namespace))
      .filter((pod) => pod.status?.phase === 'Running' && volumesOf(pod, name).length > 0)
      .map(({ metadata }) => identifier('', 'pods', metadata.name, namespace));
    return [
      identifier('', 'persistentvolumes', volume),
      ...pods,
      ...(await this.#groupOf(pvc, backup, signal)),
    ];
  }

  #podsOf(namespace: string): Promise<Pod[]> {
    let pods = this.#pods.get(namespace);
    if (!pods) {
      pods = patiently(() => this.#setting.client.list(PODS, { namespace }));
      this.#pods.set(namespace, pods);
      pods.catch(() => this.#pods.delete(namespace));
    }
    return pods;
  }

  async #groupOf(
    { metadata }: PersistentVolumeClaim,
    { spec }: Backup,
    signal: AbortSignal,
  ): Promise<ResourceIdentifier[]> {
    const key = spec.volumeGroupSnapshotLabelKey ?? '';
    const group = metadata.labels?.[key] ?? '';
    if (key === '' || group === '') return [];
    const { namespace } = metadata;
    const labelSelector = `${key}=${group}`;
    const list = () => this.#setting.client.list(PVCS, { namespace, labelSelector, signal });
    return (await patiently(list, signal))
      .filter((other) => other.metadata.name !== metadata.name)
      .map((other) =>
        identifier('', 'persistentvolumeclaims', other.metadata.name, other.metadata.namespace),
      );
  }
}
