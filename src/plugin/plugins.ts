import type { Logger } from '../base/index.ts';
import type { OpenActions } from './actions/index.ts';
import type { Plugin } from './contract.ts';

export interface PluginSettings {
  /** The server runs with `EnableCSI`: Velero's own actions create snapshots and DataUploads. */
  readonly hasCsi: boolean;
  /** Called when the first action is called. */
  readonly load: (logger?: Logger) => Promise<OpenActions>;
}

const PVCS = { includedResources: ['persistentvolumeclaims'] };
const UPLOADS = { includedResources: ['datauploads.velero.io'] };
const SNAPSHOTS = { includedResources: ['volumesnapshots.snapshot.storage.k8s.io'] };
const CONTENTS = { includedResources: ['volumesnapshotcontents.snapshot.storage.k8s.io'] };
const POD_VOLUMES = { includedResources: ['podvolumebackups.velero.io'] };
const CLASSES = { includedResources: ['volumesnapshotclasses.snapshot.storage.k8s.io'] };

/**
 * The actions of a process, under our own names. Velero does not start if two actions of one kind
 * have the same name, and without `EnableCSI` it skips names with `velero.io/csi-`. Velero's
 * actions with other names always run: Velero itself deletes the contents of kept snapshots. So
 * here only group snapshots have a delete action.
 */
export function pluginsFor({ hasCsi, load }: PluginSettings): Plugin[] {
  const deletion: Plugin = {
    kind: 'DeleteItemAction',
    name: 'longshore.io/dataupload-delete',
    appliesTo: UPLOADS,
    open: async (logger) => (await load(logger)).uploadDelete(),
  };
  const groupDeletion: Plugin = {
    kind: 'DeleteItemAction',
    name: 'longshore.io/group-snapshot-delete',
    appliesTo: CONTENTS,
    open: async (logger) => (await load(logger)).groupDelete(),
  };
  const podVolumes: Plugin = {
    kind: 'BackupItemActionV2',
    name: 'longshore.io/pod-volume-backup',
    appliesTo: POD_VOLUMES,
    open: async (logger) => (await load(logger)).podVolumeOperation(),
  };
  // Velero's actions make the same snapshots and uploads, also for `datamover: longshore`.
  if (hasCsi) return [deletion, groupDeletion, podVolumes];
  return [
    deletion,
    groupDeletion,
    podVolumes,
    {
      kind: 'BackupItemActionV2',
      name: 'longshore.io/csi-pvc-backupper',
      appliesTo: PVCS,
      open: async (logger) => (await load(logger)).pvcBackup(),
    },
    {
      kind: 'BackupItemActionV2',
      name: 'longshore.io/csi-volumesnapshot-backupper',
      appliesTo: SNAPSHOTS,
      open: async (logger) => (await load(logger)).snapshotBackup(),
    },
    {
      kind: 'BackupItemActionV2',
      name: 'longshore.io/csi-volumesnapshotcontent-backupper',
      appliesTo: CONTENTS,
      open: async (logger) => (await load(logger)).contentBackup(),
    },
    {
      kind: 'BackupItemActionV2',
      name: 'longshore.io/csi-volumesnapshotclass-backupper',
      appliesTo: CLASSES,
      open: async (logger) => (await load(logger)).classBackup(),
    },
    {
      kind: 'RestoreItemActionV2',
      name: 'longshore.io/csi-pvc-restorer',
      appliesTo: PVCS,
      open: async (logger) => (await load(logger)).pvcRestore(),
    },
    {
      kind: 'RestoreItemActionV2',
      name: 'longshore.io/csi-volumesnapshot-restorer',
      appliesTo: SNAPSHOTS,
      open: async (logger) => (await load(logger)).snapshotRestore(),
    },
    {
      kind: 'RestoreItemActionV2',
      name: 'longshore.io/csi-volumesnapshotcontent-restorer',
      appliesTo: CONTENTS,
      open: async (logger) => (await load(logger)).contentRestore(),
    },
    {
      kind: 'RestoreItemActionV2',
      name: 'longshore.io/csi-volumesnapshotclass-restorer',
      appliesTo: CLASSES,
      open: async (logger) => (await load(logger)).classRestore(),
    },
    {
      kind: 'RestoreItemActionV2',
      name: 'longshore.io/dataupload',
      appliesTo: UPLOADS,
      open: async (logger) => (await load(logger)).uploadResults(),
    },
    {
      kind: 'ItemBlockAction',
      name: 'longshore.io/pvc',
      appliesTo: PVCS,
      open: async (logger) => (await load(logger)).pvcBlock(),
    },
  ];
}

/** Our server polls this action about PodVolumeRestores. The action applies to no item. */
export const podVolumeRestorePlugin = (load: PluginSettings['load']): Plugin => ({
  kind: 'RestoreItemActionV2',
  name: 'longshore.io/pod-volume-restore',
  appliesTo: { includedResources: ['podvolumerestores.velero.io'] },
  open: async (logger) => (await load(logger)).podVolumeRestoreOperation(),
});
