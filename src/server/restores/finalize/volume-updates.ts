import type { RestoreVolumeInfo } from '../../../archive/index.ts';
import type { DataDownload, PodVolumeRestore } from '../../../kube/index.ts';
import { podVolumeInfoOf } from '../../../restore-volumes/index.ts';

/** Facts about volumes after all operations have ended. */
export interface RestoreVolumeFacts {
  /** PodVolumeRestores with their claims; `''` for a volume without a noted claim. */
  readonly podVolumes: readonly { readonly made: PodVolumeRestore; readonly claim: string }[];
  readonly downloads: readonly DataDownload[];
  /** PersistentVolumes of bound claims. Keys are `namespace/name`. */
  readonly volumes: ReadonlyMap<string, string>;
}

const OPERATION_ID = 'velero.io/async-operation-id';

const claimOf = ({ pvcNamespace = '', pvcName = '' }: RestoreVolumeInfo): string =>
  `${pvcNamespace}/${pvcName}`;

/** Claims without a noted PersistentVolume. */
export const unboundClaims = (infos: readonly RestoreVolumeInfo[]): string[] => [
  ...new Set(infos.filter((info) => !info.pvName && info.pvcName).map(claimOf)),
];

/**
 * The final volume infos of a restore. Adds late PodVolumeRestores, size and phase of moved data,
 * and PersistentVolumes of bound claims. Velero writes its infos before operations end, and lacks
 * these. Infos without new facts stay unchanged.
 */
export function updatedRestoreVolumeInfos(
  infos: readonly RestoreVolumeInfo[],
  { podVolumes, downloads, volumes }: RestoreVolumeFacts,
): RestoreVolumeInfo[] {
  const made = new Map(
    podVolumes.flatMap(({ made, claim }) => {
      const info = podVolumeInfoOf(made, claim);
      return info ? [[podVolumeKey(info), info] as const] : [];
    }),
  );
  const moved = new Map(
    downloads.map((download) => [download.metadata.labels?.[OPERATION_ID] ?? '', download]),
  );
  const known = infos.map((info) => {
    if (info.pvrInfo) {
      const now = made.get(podVolumeKey(info));
      made.delete(podVolumeKey(info));
      return now ? { ...info, ...now } : info;
    }
    const { snapshotDataMovementInfo: movement } = info;
    const operation = movement?.operationID ?? '';
    const download = operation === '' ? undefined : moved.get(operation);
    return movement && download
      ? { ...info, snapshotDataMovementInfo: { ...movement, ...progressOf(download) } }
      : info;
  });
  return [...made.values(), ...known].map((info) => {
    const pvName = volumes.get(claimOf(info));
    return info.pvName || pvName === undefined ? info : { ...info, pvName };
  });
}

const progressOf = ({ status = {} }: DataDownload) => ({
  size: status.progress?.totalBytes ?? 0,
  Phase: status.phase ?? '',
});

const podVolumeKey = ({ pvrInfo }: RestoreVolumeInfo): string =>
  [pvrInfo?.podNamespace, pvrInfo?.podName, pvrInfo?.volumeName].join('/');
