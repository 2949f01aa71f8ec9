import { quantityBytes } from '../base/index.ts';

/** A volume as conditions see it. Of a PVC without a volume only what the PVC says is known. */
export interface VolumeView {
  readonly capacityBytes: number;
  readonly storageClass: string;
  readonly nfs?: { readonly server?: string; readonly path?: string } | undefined;
  readonly csi?:
    | { readonly driver: string; readonly volumeAttributes?: Readonly<Record<string, string>> }
    | undefined;
  /** Velero's word for the source, such as `csi` or `nfs`; `''` for none of them. */
  readonly type: string;
  readonly pvcLabels: Readonly<Record<string, string>>;
  readonly pvcPhase: string;
  readonly pvcVolumeMode: string;
  readonly pvcAccessModes: readonly string[];
}

export interface Conditions {
  readonly capacity?: string | undefined;
  readonly storageClass?: readonly string[] | undefined;
  readonly nfs?: { readonly server?: string; readonly path?: string } | null | undefined;
  readonly csi?:
    | { readonly driver?: string; readonly volumeAttributes?: Readonly<Record<string, string>> }
    | null
    | undefined;
  readonly volumeTypes?: readonly string[] | undefined;
  readonly pvcLabels?: Readonly<Record<string, string>> | undefined;
  readonly pvcPhase?: readonly string[] | undefined;
  readonly pvcVolumeMode?: string | undefined;
  readonly pvcAccessModes?: readonly string[] | undefined;
}

/** All that are there must hold; none at all takes every volume. Velero: internal/resourcepolicies/volume_resources.go. */
export function matchesVolume(conditions: Conditions, volume: VolumeView): boolean {
  const { capacity, storageClass, volumeTypes, pvcLabels, pvcPhase } = conditions;
  return (
    (capacity === undefined || isWithin(capacity, volume.capacityBytes)) &&
    (storageClass === undefined || isOneOf(volume.storageClass, storageClass)) &&
    isNfs(conditions.nfs, volume) &&
    isCsi(conditions.csi, volume) &&
    (volumeTypes === undefined || volumeTypes.includes(volume.type)) &&
    (pvcLabels === undefined || hasAll(volume.pvcLabels, pvcLabels)) &&
    (pvcPhase === undefined || isOneOf(volume.pvcPhase, pvcPhase)) &&
    (conditions.pvcVolumeMode === undefined || conditions.pvcVolumeMode === volume.pvcVolumeMode) &&
    (conditions.pvcAccessModes === undefined ||
      isSameSet(conditions.pvcAccessModes, volume.pvcAccessModes))
  );
}

/** `low,high`, both included; 0 or nothing is an open end. */
export function boundsOf(text: string): readonly [low: number, high: number] | undefined {
  const parts = text.split(',').map((part) => part.trim());
  if (parts.length !== 2) return undefined;
  const [low, high] = parts.map((part) => {
    if (part === '' || /^0+$/.test(part)) return 0;
    const bytes = quantityBytes(part);
    return bytes === 0 ? Number.NaN : bytes;
  });
  if (low === undefined || high === undefined || Number.isNaN(low) || Number.isNaN(high)) {
    return undefined;
  }
  return [low, high];
}

function isWithin(capacity: string, bytes: number): boolean {
  const [low, high] = boundsOf(capacity) ?? [0, 0];
  return bytes >= low && (high === 0 || bytes <= high);
}

const isOneOf = (value: string, list: readonly string[]): boolean =>
  value !== '' && list.includes(value);

function isNfs(wanted: Conditions['nfs'], { nfs }: VolumeView): boolean {
  if (!wanted) return true;
  if (!nfs) return false;
  const { server, path } = wanted;
  return (
    (server === undefined || server === '' || server === nfs.server) &&
    (path === undefined || path === '' || path === nfs.path)
  );
}

function isCsi(wanted: Conditions['csi'], { csi }: VolumeView): boolean {
  if (!wanted) return true;
  if (!csi) return false;
  const { driver, volumeAttributes } = wanted;
  if (driver !== undefined && driver !== '' && driver !== csi.driver) return false;
  return volumeAttributes === undefined || hasAll(csi.volumeAttributes ?? {}, volumeAttributes);
}

const hasAll = (
  present: Readonly<Record<string, string>>,
  wanted: Readonly<Record<string, string>>,
): boolean => Object.entries(wanted).every(([key, value]) => present[key] === value);

const isSameSet = (a: readonly string[], b: readonly string[]): boolean =>
  new Set(a).size === new Set(b).size && a.every((each) => b.includes(each));
