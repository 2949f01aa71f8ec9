import type { BackupSpec } from '../kube/index.ts';
import { goDurationNs } from './hooks/durations.ts';

/** Server flags that fill empty fields of Backups. */
export interface BackupDefaults {
  readonly ttl: string;
  readonly csiSnapshotTimeout: string;
  readonly itemOperationTimeout: string;
  readonly resourceTimeout: string;
  readonly volumeGroupSnapshotLabelKey: string;
  readonly defaultVolumesToFsBackup: boolean;
  readonly snapshotMoveData: boolean;
  readonly storageLocation: string;
  /** VolumeSnapshotLocation names by provider. */
  readonly snapshotLocations: Readonly<Record<string, string>>;
}

/** Velero: pkg/cmd/server/config/config.go. */
export const BACKUP_DEFAULTS: BackupDefaults = {
  ttl: '720h0m0s',
  csiSnapshotTimeout: '10m0s',
  itemOperationTimeout: '4h0m0s',
  resourceTimeout: '10m0s',
  volumeGroupSnapshotLabelKey: 'velero.io/volume-group',
  defaultVolumesToFsBackup: false,
  snapshotMoveData: false,
  storageLocation: 'default',
  snapshotLocations: {},
};

const isUnset = (duration: string | undefined): boolean =>
  duration === undefined || duration === '' || goDurationNs(duration) === 0n;

/** Fills the empty fields of a spec, except its locations. */
export function setDefaults(spec: BackupSpec, defaults: BackupDefaults): void {
  for (const field of ['ttl', 'csiSnapshotTimeout', 'itemOperationTimeout'] as const) {
    if (isUnset(spec[field])) spec[field] = defaults[field];
  }
  if (!spec.volumeGroupSnapshotLabelKey) {
    spec.volumeGroupSnapshotLabelKey = defaults.volumeGroupSnapshotLabelKey;
  }
  if (spec.defaultVolumesToRestic === true) spec.defaultVolumesToFsBackup = true;
  spec.defaultVolumesToFsBackup ??= defaults.defaultVolumesToFsBackup;
  spec.snapshotMoveData ??= defaults.snapshotMoveData;
}

/** Checks the durations of a spec. */
export const durationErrors = (spec: BackupSpec): string[] =>
  (['ttl', 'csiSnapshotTimeout', 'itemOperationTimeout'] as const).flatMap((field) => {
    const text = spec[field];
    const ns = goDurationNs(text);
    if (ns === undefined)
      return [`Invalid ${field} "${text ?? ''}": it is not a duration such as 720h0m0s`];
    return ns < 0n ? [`Invalid ${field} "${text ?? ''}": it is less than zero`] : [];
  });
