import { NO_QUANTITY, type Quantity, quantityOrNone } from './capacity.ts';
import type { CsiSource, NfsSource, VolumeView } from './conditions.ts';
import { fileAnnotationsOf } from './pod-annotations.ts';
import { sourceWithoutFiles, typeOfPodVolume, typeOfPv } from './volume-types.ts';

/** The parts of API objects that policies read. */
export interface Named {
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string | undefined;
    readonly uid?: string | undefined;
    readonly labels?: Readonly<Record<string, string>> | null | undefined;
    readonly annotations?: Readonly<Record<string, string>> | null | undefined;
    readonly deletionTimestamp?: string | undefined;
  };
}

export interface PvObject extends Named {
  readonly spec: {
    readonly capacity?: Readonly<Record<string, string>> | undefined;
    readonly storageClassName?: string | undefined;
    readonly claimRef?: ClaimRef | null | undefined;
    readonly [source: string]: unknown;
  };
}

interface ClaimRef {
  readonly namespace?: string | undefined;
  readonly name?: string | undefined;
  readonly uid?: string | undefined;
}

export interface PvcObject extends Named {
  readonly spec: {
    readonly accessModes?: readonly string[] | null | undefined;
    readonly storageClassName?: string | undefined;
    readonly volumeMode?: string | undefined;
    readonly volumeName?: string | undefined;
    readonly resources?:
      { readonly requests?: Readonly<Record<string, string>> | undefined } | undefined;
  };
  readonly status?: { readonly phase?: string } | undefined;
}

export interface PodVolumeObject {
  readonly name: string;
  readonly persistentVolumeClaim?: { readonly claimName: string } | null | undefined;
  readonly [source: string]: unknown;
}

interface ContainerObject {
  readonly restartPolicy?: string | undefined;
  readonly volumeMounts?: readonly { readonly name: string }[] | null | undefined;
  readonly volumeDevices?: readonly { readonly name: string }[] | null | undefined;
}

export interface PodObject extends Named {
  readonly spec: {
    readonly nodeName?: string | undefined;
    readonly volumes?: readonly PodVolumeObject[] | null | undefined;
    readonly containers?: readonly ContainerObject[] | null | undefined;
    readonly initContainers?: readonly ContainerObject[] | null | undefined;
  };
  readonly status?: { readonly phase?: string | undefined } | undefined;
}

export interface PvFacts {
  readonly name: string;
  readonly capacity: Quantity;
  readonly storageClass: string;
  readonly nfs?: NfsSource | undefined;
  readonly csi?: CsiSource | undefined;
  readonly type: string;
  /** Undefined for an unclaimed volume. */
  readonly claim?:
    { readonly namespace: string; readonly name: string; readonly uid: string } | undefined;
}

export interface PvcFacts {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly phase: string;
  readonly volumeMode: string;
  readonly accessModes: readonly string[];
  readonly storageClass: string;
  readonly request: Quantity;
  readonly volumeName: string;
  readonly isExcluded: boolean;
  /** The VolumeSnapshotClass that its annotation names. */
  readonly snapshotClass?: string | undefined;
  /** The VolumeGroupSnapshotClass that its annotation names. */
  readonly groupClass?: string | undefined;
}

/** The kept facts of a volume in a pod's spec. */
export interface PodVolumeFacts {
  readonly name: string;
  readonly type: string;
  readonly nfs?: NfsSource | undefined;
  readonly csi?: CsiSource | undefined;
  readonly claim?: string | undefined;
  /** Why the volume never gets a file-system backup; undefined if it may get one. */
  readonly withoutFiles?: string | undefined;
  readonly isMounted: boolean;
  readonly isBlock: boolean;
}

export interface PodFacts {
  readonly namespace: string;
  readonly name: string;
  readonly isRunning: boolean;
  /** Only the two annotations about file-system backups. */
  readonly annotations: Readonly<Record<string, string>>;
  readonly volumes: readonly PodVolumeFacts[];
}

export function factsOfPv({ metadata, spec }: PvObject): PvFacts {
  const { claimRef } = spec;
  const { namespace = '', name = '', uid = '' } = claimRef ?? {};
  return {
    name: metadata.name,
    capacity: quantityOrNone(spec.capacity?.['storage']),
    storageClass: spec.storageClassName ?? '',
    ...sourcesOf(spec),
    type: typeOfPv(spec),
    ...(claimRef && { claim: { namespace, name, uid } }),
  };
}

function sourcesOf(spec: Readonly<Record<string, unknown>>): {
  nfs?: NfsSource;
  csi?: CsiSource;
} {
  const nfs = spec['nfs'] as Partial<NfsSource> | null | undefined;
  const csi = spec['csi'] as Partial<CsiSource> | null | undefined;
  return {
    ...(nfs && { nfs: { server: nfs.server ?? '', path: nfs.path ?? '' } }),
    ...(csi && {
      csi: { driver: csi.driver ?? '', volumeAttributes: csi.volumeAttributes ?? {} },
    }),
  };
}

const SNAPSHOT_CLASS = 'velero.io/csi-volumesnapshot-class';
const GROUP_CLASS = 'velero.io/csi-volume-group-snapshot-class';

export function factsOfPvc({ metadata, spec, status }: PvcObject): PvcFacts {
  const snapshotClass = metadata.annotations?.[SNAPSHOT_CLASS];
  const groupClass = metadata.annotations?.[GROUP_CLASS];
  return {
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    uid: metadata.uid ?? '',
    labels: metadata.labels ?? {},
    phase: status?.phase ?? '',
    volumeMode: spec.volumeMode ?? '',
    accessModes: spec.accessModes ?? [],
    storageClass: spec.storageClassName ?? '',
    request: quantityOrNone(spec.resources?.requests?.['storage']),
    volumeName: spec.volumeName ?? '',
    isExcluded: metadata.labels?.['velero.io/exclude-from-backup'] === 'true',
    ...(snapshotClass !== undefined && { snapshotClass }),
    ...(groupClass !== undefined && { groupClass }),
  };
}

export function factsOfPodVolume(
  volume: PodVolumeObject,
  { spec }: Pick<PodObject, 'spec'>,
): PodVolumeFacts {
  const isIn = (list: readonly { readonly name: string }[] | null | undefined): boolean =>
    (list ?? []).some(({ name }) => name === volume.name);
  const regular = spec.containers ?? [];
  const sidecars = (spec.initContainers ?? []).filter((each) => each.restartPolicy === 'Always');
  const claim = volume.persistentVolumeClaim?.claimName;
  const source = sourceWithoutFiles(volume);
  // As in Velero: the service account token volume of old clusters.
  const withoutFiles = volume.name.startsWith('default-token') ? 'default-token' : source;
  return {
    name: volume.name,
    type: typeOfPodVolume(volume),
    ...sourcesOf(volume),
    ...(claim !== undefined && { claim }),
    ...(withoutFiles !== undefined && { withoutFiles }),
    isMounted: [...regular, ...sidecars].some(({ volumeMounts }) => isIn(volumeMounts)),
    isBlock: [...regular, ...(spec.initContainers ?? [])].some(({ volumeDevices }) =>
      isIn(volumeDevices),
    ),
  };
}

/** `keep` selects the volumes to keep: pods of large clusters have many irrelevant volumes. */
export function factsOfPod(
  pod: PodObject,
  keep: (volume: PodVolumeFacts) => boolean = () => true,
): PodFacts {
  const { metadata, spec, status } = pod;
  return {
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    isRunning:
      status?.phase === 'Running' &&
      (spec.nodeName ?? '') !== '' &&
      metadata.deletionTimestamp === undefined,
    annotations: fileAnnotationsOf(metadata.annotations ?? {}),
    volumes: (spec.volumes ?? []).map((volume) => factsOfPodVolume(volume, pod)).filter(keep),
  };
}

/** Whether a volume that a PVC names still belongs to this PVC. */
export const isVolumeOf = ({ claim }: PvFacts, { namespace, name, uid }: PvcFacts): boolean =>
  claim === undefined ||
  (claim.namespace === namespace &&
    claim.name === name &&
    (claim.uid === '' || uid === '' || claim.uid === uid));

/** Velero's rule for a PVC with a volume: both phase and name must be set. */
export const isBound = ({ volumeName, phase }: PvcFacts): boolean =>
  volumeName !== '' && phase === 'Bound';

/**
 * The view of a volume: PV and PVC together, from either side. A PVC without a volume uses its
 * request. A volume that only a pod has is matched by its type, without capacity and class.
 */
export function viewOf({
  pv,
  pvc,
  podVolume,
}: {
  readonly pv?: PvFacts | undefined;
  readonly pvc?: PvcFacts | undefined;
  readonly podVolume?: PodVolumeFacts | undefined;
}): VolumeView {
  const source = pv ?? (pvc ? undefined : podVolume);
  return {
    capacity: pv?.capacity ?? pvc?.request ?? NO_QUANTITY,
    storageClass: pv?.storageClass ?? pvc?.storageClass ?? '',
    nfs: source?.nfs,
    csi: source?.csi,
    type: source?.type ?? '',
    ...pvcView(pvc),
  };
}

/**
 * Velero 1.18's view (internal/resourcepolicies, GetMatchAction). Starting from a PV, Velero does
 * not know the PVC. A PVC without a volume has no capacity and no class.
 */
export function veleroViewOf({ pv, pvc, podVolume }: Parameters<typeof viewOf>[0]): VolumeView {
  const source = pv ?? podVolume;
  return {
    capacity: pv?.capacity ?? NO_QUANTITY,
    storageClass: pv?.storageClass ?? '',
    nfs: source?.nfs,
    csi: source?.csi,
    type: source?.type ?? '',
    ...pvcView(pvc),
  };
}

const pvcView = (pvc: PvcFacts | undefined) => ({
  pvcLabels: pvc?.labels ?? {},
  pvcPhase: pvc?.phase ?? '',
  pvcVolumeMode: pvc?.volumeMode ?? '',
  pvcAccessModes: pvc?.accessModes ?? [],
});
