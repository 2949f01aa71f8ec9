import type { BackupVolumeInfo } from '../../archive/index.ts';
import { inPlaceHindrance } from '../../exposer/index.ts';
import {
  type DataDownload,
  IN_PLACE_MOVER,
  inPlaceConfig,
  type KubeClient,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
} from '../../kube/index.ts';
import { misfitOf, notInPlace } from '../../plugin/index.ts';
import { type RestoreAction, targetNamespace } from '../../restore/index.ts';

export interface RehearsedInPlaceOptions {
  readonly client: KubeClient;
  /** Of the backup. */
  readonly infos: readonly BackupVolumeInfo[];
}

/** Says of each PVC that is there already whether a server would bring its volume back in place, or why not. Makes nothing. */
export function rehearsedInPlace({ client, infos }: RehearsedInPlaceOptions): RestoreAction {
  const infoOf = new Map(
    infos.map((info) => [`${info.pvcNamespace ?? ''}/${info.pvcName ?? ''}`, info]),
  );
  return {
    name: 'longshore.io/csi-pvc-restorer',
    appliesTo: { includedResources: ['persistentvolumeclaims'] },
    execute: async ({ itemFromBackup, restore, volumeFromBackup }, { signal }) => {
      const { namespace: from = '', name } = itemFromBackup.metadata;
      const namespace = targetNamespace(from, restore);
      const present = await client.find(PVCS, { namespace, name }, { signal });
      if (!present || restore.spec.restorePVs === false) return {};
      const info = infoOf.get(`${from}/${name}`);
      const moved = info?.snapshotDataMovementInfo;
      if (!moved) {
        if (info?.backupMethod !== 'CSISnapshot') return {};
        throw notInPlace(present, 'kept');
      }
      const fromBackup = itemFromBackup as PersistentVolumeClaim;
      const { dataMover = '', size } = moved;
      const result = {
        datamover: dataMover,
        ...(typeof size === 'number' && { snapshotSize: size }),
      };
      const { volumeName = '' } = present.spec;
      const existing = {
        ...{ fromBackup, present, result },
        volumeFromBackup: (await volumeFromBackup?.()) as PersistentVolume | undefined,
        presentVolume:
          volumeName === '' ? undefined : await client.find(PVS, { name: volumeName }, { signal }),
      };
      const order = { dryRun: false, keepExtra: true, claimUid: present.metadata.uid };
      const download = {
        metadata: { name: '' },
        spec: {
          targetVolume: { namespace, pvc: name, pv: '' },
          datamover: IN_PLACE_MOVER,
          dataMoverConfig: inPlaceConfig(order),
        },
      } as unknown as DataDownload;
      const hindrance =
        misfitOf(existing, restore) ?? (await inPlaceHindrance(client, download, signal));
      if (hindrance) throw notInPlace(present, hindrance);
      return { isInPlace: true };
    },
  };
}
