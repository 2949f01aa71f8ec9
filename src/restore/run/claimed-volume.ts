import type { KubeObject, PersistentVolumeClaim } from '../../kube/index.ts';
import type { BackedUpItems, ItemFile } from './contract.ts';
import { readItem } from './item-file.ts';

/** Loads the volume object that a PVC of a backup had; undefined for what is no PVC. The loader throws what is wrong with its file. */
export function volumeReaderOf(
  { groupResource }: ItemFile,
  given: KubeObject,
  items: BackedUpItems,
): (() => Promise<KubeObject | undefined>) | undefined {
  if (groupResource !== 'persistentvolumeclaims') return undefined;
  return async () => {
    const { volumeName: name = '' } = (given as PersistentVolumeClaim).spec;
    const folder = { groupResource: 'persistentvolumes', version: undefined, namespace: '' };
    const file = { ...folder, isPreferred: true, name };
    if (name === '' || !items.has(file)) return undefined;
    const bytes = await items.load(file);
    return bytes && readItem(file, bytes);
  };
}
