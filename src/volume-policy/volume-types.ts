import { lookup } from '../base/index.ts';
/**
 * Sources of a PersistentVolume, in Velero's order
 * (internal/resourcepolicies/volume_types_conditions.go). The first present source counts.
 */
const OF_PV = [
  'awsElasticBlockStore',
  'azureDisk',
  'azureFile',
  'cephfs',
  'cinder',
  'csi',
  'fc',
  'flocker',
  'flexVolume',
  'gcePersistentDisk',
  'glusterfs',
  'hostPath',
  'iscsi',
  'local',
  'nfs',
  'photonPersistentDisk',
  'portworxVolume',
  'quobyte',
  'rbd',
  'scaleIO',
  'storageos',
  'vsphereVolume',
];

/** Sources of a pod volume. `image` comes from Velero after 1.18, which has it last. */
const OF_POD = [
  'awsElasticBlockStore',
  'azureDisk',
  'azureFile',
  'cephfs',
  'cinder',
  'csi',
  'fc',
  'flocker',
  'flexVolume',
  'gcePersistentDisk',
  'gitRepo',
  'glusterfs',
  'iscsi',
  'nfs',
  'secret',
  'rbd',
  'downwardAPI',
  'configMap',
  'projected',
  'ephemeral',
  'photonPersistentDisk',
  'portworxVolume',
  'quobyte',
  'scaleIO',
  'storageos',
  'vsphereVolume',
  'hostPath',
  'emptyDir',
  'image',
];

/** The name in a condition: Velero spells one of them differently from the API. */
const nameOf = (field: string): string => (field === 'storageos' ? 'storageOS' : field);

export const VOLUME_TYPES: ReadonlySet<string> = new Set([...OF_PV, ...OF_POD].map(nameOf));

const isThere = (value: unknown): boolean => value !== undefined && value !== null;

const typeOf = (fields: readonly string[], source: Readonly<Record<string, unknown>>): string =>
  nameOf(fields.find((field) => isThere(lookup(source, field))) ?? '');

/** `''` for a source that Velero does not know. */
export const typeOfPv = (spec: Readonly<Record<string, unknown>>): string => typeOf(OF_PV, spec);

/** `''` also for a PVC. */
export const typeOfPodVolume = (volume: Readonly<Record<string, unknown>>): string =>
  typeOf(OF_POD, volume);

/** Volumes without a file-system backup: their data are API objects or files of the node. */
const WITHOUT_FILES = ['hostPath', 'secret', 'configMap', 'projected', 'downwardAPI'] as const;

/** A source that never gets a file-system backup; undefined for other volumes. */
export const sourceWithoutFiles = (volume: Readonly<Record<string, unknown>>): string | undefined =>
  WITHOUT_FILES.find((field) => isThere(volume[field]));
