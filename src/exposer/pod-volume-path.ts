import { CodedError, lookup } from '../base/index.ts';
import {
  type KubeClient,
  type PersistentVolume,
  type PersistentVolumeClaim,
  type Pod,
  PVCS,
  PVS,
  type Volume,
} from '../kube/index.ts';

/**
 * The directory of a pod's volume below the kubelet's directory of that pod (kubernetes:
 * pkg/volume/<plugin>, pkg/volume/util, `EscapeQualifiedName`). The path is computed, not searched.
 * So only the mover needs a directory of the node.
 */
export interface PodVolumePath {
  /** For example `volumes/kubernetes.io~csi/pvc-1/mount`. */
  readonly path: string;
  /** Capacity that the claim requests; undefined if unknown. */
  readonly capacity: string | undefined;
  readonly claim?: PersistentVolumeClaim;
}

/** The kubelet's directory for each source in the spec of a pod or PersistentVolume. */
const PLUGINS: Readonly<Record<string, string>> = {
  awsElasticBlockStore: 'kubernetes.io~aws-ebs',
  azureDisk: 'kubernetes.io~azure-disk',
  azureFile: 'kubernetes.io~azure-file',
  cephfs: 'kubernetes.io~cephfs',
  cinder: 'kubernetes.io~cinder',
  emptyDir: 'kubernetes.io~empty-dir',
  fc: 'kubernetes.io~fc',
  gcePersistentDisk: 'kubernetes.io~gce-pd',
  gitRepo: 'kubernetes.io~git-repo',
  glusterfs: 'kubernetes.io~glusterfs',
  iscsi: 'kubernetes.io~iscsi',
  local: 'kubernetes.io~local-volume',
  nfs: 'kubernetes.io~nfs',
  photonPersistentDisk: 'kubernetes.io~photon-pd',
  portworxVolume: 'kubernetes.io~portworx-volume',
  quobyte: 'kubernetes.io~quobyte',
  rbd: 'kubernetes.io~rbd',
  scaleIO: 'kubernetes.io~scaleio',
  storageos: 'kubernetes.io~storageos',
  vsphereVolume: 'kubernetes.io~vsphere-volume',
};
/** Sources that hold no data of their own, or do not belong to the kubelet. */
const REFUSED: Readonly<Record<string, string>> = {
  configMap: 'a ConfigMap',
  downwardAPI: 'a downward API volume',
  hostPath: 'a directory of the node (hostPath)',
  image: 'an image',
  projected: 'a projected volume',
  secret: 'a Secret',
};
/** Annotation of a volume of a built-in plugin that a CSI driver now serves. Names the driver. */
const MIGRATED_TO = 'pv.kubernetes.io/migrated-to';

/** Where the kubelet mounts a pod's volume. Throws `EXPOSE_FAILED` if it cannot be read. */
export async function findPodVolume(
  client: KubeClient,
  pod: Pod,
  name: string,
  signal?: AbortSignal,
): Promise<PodVolumePath> {
  const { namespace = '', name: podName } = pod.metadata;
  const what = `volume ${name} of pod ${namespace}/${podName}`;
  const volume = pod.spec.volumes?.find((each) => each.name === name);
  if (!volume) throw failed(`volume not found in pod: ${what} does not exist`);
  const claimName = volume.ephemeral
    ? `${podName}-${name}`
    : volume.persistentVolumeClaim?.claimName;
  if (claimName === undefined) return { path: ownPath(volume, what), capacity: undefined };
  const claim = await client.get(PVCS, { namespace, name: claimName }, { signal });
  if (claim.spec.volumeMode === 'Block') {
    throw failed(
      `${what} is a block volume, which file-system backup cannot read: back it up with a CSI snapshot`,
    );
  }
  const pvName = claim.spec.volumeName ?? '';
  if (pvName === '')
    throw failed(`${what} is not bound: PVC ${namespace}/${claimName} has no volume`);
  const found = await client.get(PVS, { name: pvName }, { signal });
  const path = `volumes/${claimedPath(found, what)}`;
  return { path, capacity: claim.spec.resources?.requests?.storage, claim };
}

function ownPath(volume: Volume, what: string): string {
  if (volume.csi !== undefined) return `volumes/kubernetes.io~csi/${volume.name}/mount`;
  return `volumes/${pluginOf(volume, what)}/${volume.name}`;
}

function claimedPath(
  { metadata: { name, annotations = {} }, spec }: PersistentVolume,
  what: string,
): string {
  const isCsi = spec.csi !== undefined || annotations[MIGRATED_TO] !== undefined;
  return isCsi ? `kubernetes.io~csi/${name}/mount` : `${pluginOf(spec, what)}/${name}`;
}

function pluginOf(spec: Readonly<Record<string, unknown>>, what: string): string {
  for (const [key, source] of Object.entries(spec)) {
    if (source === undefined || source === null) continue;
    const refused = lookup(REFUSED, key);
    if (refused !== undefined) {
      throw failed(`${what} is ${refused}, which file-system backup does not support`);
    }
    const plugin = lookup(PLUGINS, key);
    if (plugin !== undefined) return plugin;
    // The driver's own name, such as example.com/nfs.
    const { driver } = source as { driver?: unknown };
    if (key === 'flexVolume' && typeof driver === 'string') return driver.replaceAll('/', '~');
  }
  const kinds = Object.keys(spec).filter((key) => typeof lookup(spec, key) === 'object');
  throw failed(`${what} is of a kind that is not known here: ${kinds.join(', ')}`);
}

const failed = (text: string): CodedError => new CodedError('EXPOSE_FAILED', text);
