import { lookup } from '../../base/index.ts';
import {
  type Backup,
  type KubeObject,
  type PersistentVolumeClaim,
  PVCS,
} from '../../kube/index.ts';
import type { CallContext, ItemBlockAction, ResourceIdentifier } from '../contract.ts';
import { ClaimUsers } from './claim-users.ts';
import { identifier, patiently, type Setting } from './settings.ts';

/**
 * Items to back up together with a PVC: its volume, the PVCs of its group, and the pods that mount
 * it. The pods' hooks are for its snapshot too.
 */
export class PvcBlock implements ItemBlockAction {
  readonly #setting: Setting;
  readonly #users: ClaimUsers;

  constructor(setting: Setting) {
    this.#setting = setting;
    this.#users = new ClaimUsers(setting);
  }

  async relatedItems(
    item: KubeObject,
    backup: Backup,
    { signal }: CallContext,
  ): Promise<readonly ResourceIdentifier[]> {
    const pvc = item as PersistentVolumeClaim;
    const { spec, status } = item as Partial<PersistentVolumeClaim>;
    const { name, namespace = '' } = pvc.metadata;
    const volume = spec?.volumeName ?? '';
    if (status?.phase !== 'Bound' || volume === '') return [];
    const running = (await this.#users.of(namespace, name)).filter(({ isRunning }) => isRunning);
    const names = new Set(running.map(({ pod }) => pod));
    const pods = [...names].map((pod) => identifier('', 'pods', pod, namespace));
    return [
      identifier('', 'persistentvolumes', volume),
      ...pods,
      ...(await this.#groupOf(pvc, backup, signal)),
    ];
  }

  async #groupOf(
    { metadata }: PersistentVolumeClaim,
    { spec }: Backup,
    signal: AbortSignal,
  ): Promise<ResourceIdentifier[]> {
    const key = spec.volumeGroupSnapshotLabelKey ?? '';
    const group = lookup(metadata.labels, key) ?? '';
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
