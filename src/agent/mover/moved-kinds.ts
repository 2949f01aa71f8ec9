import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
} from '../../kube/index.ts';
import type { Movement } from '../movement.ts';

export type MovedKind = 'DataUpload' | 'DataDownload' | 'PodVolumeBackup' | 'PodVolumeRestore';

/** Differences of the kinds, in Velero's words (pkg/datamover, pkg/podvolume). */
export interface MovedTraits {
  readonly resource: Resource<Movement>;
  readonly direction: 'backup' | 'restore';
  /** In termination messages. */
  readonly title: string;
  /** In Events and errors of the data path. */
  readonly noun: string;
  readonly short: string;
}

export const MOVED: Readonly<Record<MovedKind, MovedTraits>> = {
  DataUpload: {
    resource: DATA_UPLOADS,
    direction: 'backup',
    title: 'DataUpload',
    noun: 'data upload',
    short: 'du',
  },
  DataDownload: {
    resource: DATA_DOWNLOADS,
    direction: 'restore',
    title: 'DataDownload',
    noun: 'data download',
    short: 'dd',
  },
  PodVolumeBackup: {
    resource: POD_VOLUME_BACKUPS,
    direction: 'backup',
    title: 'PVB',
    noun: 'PVB',
    short: 'PVB',
  },
  PodVolumeRestore: {
    resource: POD_VOLUME_RESTORES,
    direction: 'restore',
    title: 'PVR',
    noun: 'PVR',
    short: 'PVR',
  },
};
