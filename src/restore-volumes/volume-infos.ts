import type { RestoreVolumeInfo } from '../archive/index.ts';
import { quantityBytes } from '../base/index.ts';
import {
  type DataDownload,
  isMovementOver,
  type PersistentVolumeClaim,
  type PodVolumeRestore,
  type VolumeSnapshot,
} from '../kube/index.ts';
import type { UsedSnapshot } from './persistent-volumes.ts';

/** A claim that the restore has created, in its current state. */
export interface RestoredClaim {
  readonly claim: PersistentVolumeClaim;
  /** The VolumeSnapshot that it was made from. */
  readonly snapshot?: VolumeSnapshot | undefined;
}

/** A claim that existed before. The backup has its data, which the restore did not write. */
export interface SkippedClaim {
  readonly namespace: string;
  readonly name: string;
  readonly why: string;
}

export interface RestoreInfoSources {
  readonly claims: readonly RestoredClaim[];
  /** With the claim of each volume. A volume without a claim (`''`) is not recorded. */
  readonly podVolumes: readonly { readonly made: PodVolumeRestore; readonly claim: string }[];
  readonly natives: readonly UsedSnapshot[];
  readonly downloads: readonly DataDownload[];
  readonly skipped?: readonly SkippedClaim[];
}

const HANDLE = 'velero.io/csi-volumesnapshot-handle';
const DRIVER = 'velero.io/csi-driver-name';
const OPERATION_ID = 'velero.io/async-operation-id';

/**
 * Velero's `restore-<name>-volumeinfo.json.gz`. Pods' volumes come first, then native snapshots,
 * CSI snapshots and moved data. Velero: internal/volume/volumes_information.go,
 * RestoreVolumeInfoTracker.Result.
 */
export function restoreVolumeInfosOf(sources: RestoreInfoSources): RestoreVolumeInfo[] {
  const bound = new Map(
    sources.claims.map(({ claim }) => [
      `${claim.metadata.namespace ?? ''}/${claim.metadata.name}`,
      claim.status?.phase === 'Bound' ? (claim.spec.volumeName ?? '') : '',
    ]),
  );
  const volumeOf = (namespace: string, name: string): { pvName?: string } => {
    const pvName = bound.get(`${namespace}/${name}`) ?? '';
    return pvName === '' ? {} : { pvName };
  };
  const byVolume = new Map(sources.claims.map(({ claim }) => [claim.spec.volumeName, claim]));
  const claimOf = (pv: string): { pvcName?: string; pvcNamespace?: string } => {
    const found = byVolume.get(pv)?.metadata;
    return found ? { pvcName: found.name, pvcNamespace: found.namespace ?? '' } : {};
  };
  return [
    ...sources.podVolumes.flatMap(({ made, claim }) => {
      const info = podVolumeInfoOf(made, claim);
      return info ? [{ ...info, ...volumeOf(made.spec.pod.namespace ?? '', claim) }] : [];
    }),
    ...sources.natives.map(({ pv, snapshot: { spec, status } }) => ({
      ...claimOf(pv),
      pvName: pv,
      restoreMethod: 'NativeSnapshot',
      snapshotDataMoved: false,
      nativeSnapshotInfo: {
        snapshotHandle: status?.providerSnapshotID ?? '',
        volumeType: spec.volumeType ?? '',
        volumeAZ: spec.volumeAZ ?? '',
        // Velero writes a number even if the provider has none.
        iops: String(spec.volumeIOPS ?? 0),
      },
    })),
    ...sources.claims.flatMap(({ claim: { metadata }, snapshot }) => {
      if (!snapshot) return [];
      const { namespace = '', name } = metadata;
      const { annotations = {} } = snapshot.metadata;
      const size = snapshot.status?.restoreSize;
      return [
        {
          pvcName: name,
          pvcNamespace: namespace,
          ...volumeOf(namespace, name),
          restoreMethod: 'CSISnapshot',
          snapshotDataMoved: false,
          csiSnapshotInfo: {
            snapshotHandle: annotations[HANDLE] ?? '',
            driver: annotations[DRIVER] ?? '',
            size: size === undefined ? 0 : quantityBytes(size),
            vscName: snapshot.spec.source.volumeSnapshotContentName ?? '',
          },
        },
      ];
    }),
    ...sources.downloads.map(({ metadata, spec }) => {
      const { namespace, pvc } = spec.targetVolume;
      const { datamover = '' } = spec;
      return {
        pvcName: pvc,
        pvcNamespace: namespace,
        ...volumeOf(namespace, pvc),
        restoreMethod: 'CSISnapshot',
        snapshotDataMoved: true,
        snapshotDataMovementInfo: {
          dataMover: datamover === '' ? 'velero' : datamover,
          uploaderType: 'kopia',
          snapshotHandle: spec.snapshotID,
          operationID: metadata.labels?.[OPERATION_ID] ?? '',
        },
      };
    }),
    // Velero ignores an entry without a method.
    ...(sources.skipped ?? []).map(({ namespace, name, why }) => ({
      pvcName: name,
      pvcNamespace: namespace,
      skipped: true,
      skippedReason: why,
    })),
  ];
}

/** The info of a finished PodVolumeRestore. Undefined if unfinished, or without a claim (`''`). */
export function podVolumeInfoOf(
  { spec, status = {} }: PodVolumeRestore,
  claim: string,
): RestoreVolumeInfo | undefined {
  const { phase = '', progress } = status;
  const { namespace = '', name: podName = '' } = spec.pod;
  if (claim === '' || !isMovementOver(phase)) return undefined;
  return {
    pvcName: claim,
    pvcNamespace: namespace,
    restoreMethod: 'PodVolumeRestore',
    snapshotDataMoved: false,
    pvrInfo: {
      snapshotHandle: spec.snapshotID,
      size: progress?.totalBytes ?? 0,
      uploaderType: spec.uploaderType ?? '',
      volumeName: spec.volume,
      podName,
      podNamespace: namespace,
      Phase: phase,
    },
  };
}
