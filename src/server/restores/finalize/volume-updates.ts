import type { RestoreVolumeInfo } from '../../../archive/index.ts';
import type { DataDownload, PodVolumeRestore } from '../../../kube/index.ts';
import { podVolumeInfoOf } from '../../../restore-volumes/index.ts';

/** What is known of volumes when all operations of a restore are over. */
export interface RestoreVolumeFacts {
  /** With the claim of each; `''` for a volume that has none, which is not noted. */
  readonly podVolumes: readonly { readonly made: PodVolumeRestore; readonly claim: string }[];
  readonly downloads: readonly DataDownload[];
  /** PersistentVolumes of claims that are bound, by `namespace/name`. */
  readonly volumes: ReadonlyMap<string, string>;
}

const OPERATION_ID = 'velero.io/async-operation-id';

const claimOf = ({ pvcNamespace = '', pvcName = '' }: RestoreVolumeInfo): string =>
  `${pvcNamespace}/${pvcName}`;

/** Claims whose PersistentVolume is not noted yet. */
export const unboundClaims = (infos: readonly RestoreVolumeInfo[]): string[] => [
  ...new Set(infos.filter((info) => !info.pvName && info.pvcName).map(claimOf)),
];

/**
 * Volume infos of a restore as they are at the end: PodVolumeRestores that were not over when the
 * run was, the amount and phase of what was moved, and PersistentVolumes of claims that are bound
 * by now. Velero notes these before its operations end, and lacks them. What nothing is known of
 * stays.
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
