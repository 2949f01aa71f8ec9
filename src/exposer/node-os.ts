import { CodedError } from '../base/index.ts';
import {
  type KubeClient,
  NODES,
  type PersistentVolume,
  type PersistentVolumeClaim,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
} from '../kube/index.ts';

const OS_LABEL = 'kubernetes.io/os';
const SELECTED_NODE = 'volume.kubernetes.io/selected-node';

/**
 * Refuses volumes of Windows: the node that has the volume says it, else its file system
 * (Velero: pkg/util/kube/pvc_pv.go, GetPVCAttachingNodeOS).
 */
export async function assertLinuxVolume(
  client: KubeClient,
  claim: PersistentVolumeClaim,
  volume: PersistentVolume,
): Promise<void> {
  if (claim.spec.volumeMode === 'Block') return;
  const attachments = await client.list(VOLUME_ATTACHMENTS);
  const attached = attachments.find(
    ({ spec }) => spec.source.persistentVolumeName === volume.metadata.name,
  );
  const node = attached?.spec.nodeName ?? claim.metadata.annotations?.[SELECTED_NODE];
  const os = node === undefined ? undefined : await osOf(client, node);
  const isWindows = os === undefined ? await isNtfs(client, claim) : os === 'windows';
  if (!isWindows) return;
  const { namespace = '', name } = claim.metadata;
  const text = `PVC ${namespace}/${name} is of a Windows node: Windows volumes are not supported, let Velero's own data mover take it`;
  throw new CodedError('WINDOWS_UNSUPPORTED', text);
}

async function osOf(client: KubeClient, name: string): Promise<string | undefined> {
  const node = await client.find(NODES, { name });
  const labels = node?.metadata.labels;
  return labels && (labels[OS_LABEL] ?? 'linux');
}

async function isNtfs(client: KubeClient, { spec }: PersistentVolumeClaim): Promise<boolean> {
  const name = spec.storageClassName ?? '';
  if (name === '') return false;
  const found = await client.find(STORAGE_CLASSES, { name });
  return found?.parameters?.['csi.storage.k8s.io/fstype']?.toLowerCase() === 'ntfs';
}
