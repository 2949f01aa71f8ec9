import type { BackupStorageLocation } from '../../kube/index.ts';

/** The one that stays the default of several, and those that do not. */
export interface SingleDefault {
  readonly kept: BackupStorageLocation;
  readonly others: readonly BackupStorageLocation[];
}

/**
 * Of several default locations the one that was created last stays, of those of one second the first by name (Velero:
 * backup_storage_location_controller.go, ensureSingleDefaultBSL). Undefined where there are no two.
 */
export function planSingleDefault(
  locations: readonly BackupStorageLocation[],
): SingleDefault | undefined {
  const defaults = locations
    .filter(({ spec, metadata }) => spec?.default === true && !metadata.deletionTimestamp)
    .sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  if (defaults.length < 2) return undefined;
  const kept = defaults.reduce((before, next) =>
    createdMs(next) > createdMs(before) ? next : before,
  );
  return { kept, others: defaults.filter((location) => location !== kept) };
}

const createdMs = ({ metadata }: BackupStorageLocation): number =>
  Date.parse(metadata.creationTimestamp) || 0;
