import { lookup } from '../base/index.ts';
import { type CapacityRange, isInRange, type Quantity } from './capacity.ts';

/** A volume as conditions see it. */
export interface VolumeView {
  readonly capacity: Quantity;
  readonly storageClass: string;
  readonly nfs?: NfsSource | undefined;
  readonly csi?: CsiSource | undefined;
  /** Velero's word for the source, such as `csi` or `nfs`; `''` for an unknown source. */
  readonly type: string;
  readonly pvcLabels: Readonly<Record<string, string>>;
  readonly pvcPhase: string;
  readonly pvcVolumeMode: string;
  readonly pvcAccessModes: readonly string[];
}

export interface NfsSource {
  readonly server: string;
  readonly path: string;
}

export interface CsiSource {
  readonly driver: string;
  readonly volumeAttributes: Readonly<Record<string, string>>;
}

/** An empty condition matches every volume, as in Velero. */
export interface Conditions {
  readonly capacity: CapacityRange;
  readonly storageClass: readonly string[];
  /** Empty `server` or `path` matches any. Undefined: the volume need not be NFS. */
  readonly nfs?: NfsSource | undefined;
  /** Empty `driver` matches any. */
  readonly csi?:
    { readonly driver: string; readonly volumeAttributes: ReadonlyMap<string, string> } | undefined;
  readonly volumeTypes: readonly string[];
  readonly pvcLabels: ReadonlyMap<string, string>;
  readonly pvcPhase: readonly string[];
  readonly pvcVolumeMode: string;
  /** Must equal the PVC's access modes. */
  readonly pvcAccessModes: readonly string[];
}

/** All conditions must match. Velero: internal/resourcepolicies/volume_resources.go. */
export const matchesVolume = (conditions: Conditions, volume: VolumeView): boolean =>
  isInRange(conditions.capacity, volume.capacity) &&
  (conditions.storageClass.length === 0 || isOneOf(volume.storageClass, conditions.storageClass)) &&
  isNfs(conditions.nfs, volume) &&
  isCsi(conditions.csi, volume) &&
  (conditions.volumeTypes.length === 0 || conditions.volumeTypes.includes(volume.type)) &&
  hasLabels(volume.pvcLabels, conditions.pvcLabels) &&
  (conditions.pvcPhase.length === 0 || isOneOf(volume.pvcPhase, conditions.pvcPhase)) &&
  (conditions.pvcVolumeMode === '' || conditions.pvcVolumeMode === volume.pvcVolumeMode) &&
  (conditions.pvcAccessModes.length === 0 ||
    hasModes(volume.pvcAccessModes, conditions.pvcAccessModes));

/** Whether the conditions match every volume. */
export const isForAll = (conditions: Conditions): boolean =>
  conditions.capacity.low === 0n &&
  conditions.capacity.high === 0n &&
  conditions.storageClass.length === 0 &&
  conditions.nfs === undefined &&
  conditions.csi === undefined &&
  conditions.volumeTypes.length === 0 &&
  conditions.pvcLabels.size === 0 &&
  conditions.pvcPhase.length === 0 &&
  conditions.pvcVolumeMode === '' &&
  conditions.pvcAccessModes.length === 0;

const isOneOf = (value: string, list: readonly string[]): boolean =>
  value !== '' && list.includes(value);

const isNfs = (wanted: Conditions['nfs'], { nfs }: VolumeView): boolean =>
  !wanted ||
  (nfs !== undefined &&
    (wanted.server === '' || wanted.server === nfs.server) &&
    (wanted.path === '' || wanted.path === nfs.path));

function isCsi(wanted: Conditions['csi'], { csi }: VolumeView): boolean {
  if (!wanted) return true;
  if (!csi) return false;
  if (wanted.driver === '') return true;
  if (wanted.driver !== csi.driver) return false;
  if (wanted.volumeAttributes.size === 0) return true;
  // As in Velero: if a volume has any attributes, a missing attribute equals an empty one.
  return (
    Object.keys(csi.volumeAttributes).length > 0 &&
    [...wanted.volumeAttributes].every(
      ([key, value]) => (lookup(csi.volumeAttributes, key) ?? '') === value,
    )
  );
}

const hasLabels = (labels: VolumeView['pvcLabels'], wanted: ReadonlyMap<string, string>): boolean =>
  [...wanted].every(([key, value]) => lookup(labels, key) === value);

const hasModes = (present: readonly string[], wanted: readonly string[]): boolean =>
  present.length === wanted.length &&
  present.every((each) => wanted.includes(each)) &&
  wanted.every((each) => present.includes(each));
