import { type Backup, type BackupStorageLocation, isUsable, validLabel } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { SYNCED_PLACE } from './synced-location.ts';
import { LOCATION_LABEL, locationOf } from './synced-objects.ts';
import type { SyncMemory } from './sync-memory.ts';

/** Complete listings in a row that must lack a backup before its Backup goes. Our choice. */
const LOOKS = 2;
/** Wait if most backups vanish at once: a disk may be unmounted or a bucket new. Our choice. */
const MOST_GONE_MS = 15 * 60_000;

/** Whether a missing Backup may be removed, or why it stays. */
export type OrphanVerdict = 'gone' | 'not sure yet' | 'elsewhere';

/** Backups of a location that a complete listing lacks. */
export function missingBackups(
  backups: readonly Backup[],
  { metadata: { name } }: BackupStorageLocation,
  listed: ReadonlySet<string>,
): { readonly missing: Backup[]; readonly present: number } {
  const label = validLabel(name);
  const own = backups.filter(
    (backup) =>
      backup.metadata.labels?.[LOCATION_LABEL] === label && ['', name].includes(locationOf(backup)),
  );
  const missing = own.filter(
    (backup) =>
      !listed.has(backup.metadata.name) &&
      // Backups in other phases never had files, or a server works on them. Velero:
      // backup_sync_controller.go, deleteOrphanedBackups (v1.18.3).
      isUsable(phaseOf(backup)) &&
      backup.metadata.deletionTimestamp === undefined,
  );
  const present = own.filter(({ metadata }) => listed.has(metadata.name)).length;
  return { missing, present };
}

/**
 * Decides for each missing Backup whether it may be removed. Velero removes it at once, even if the
 * location was pointed to another bucket or prefix, or if a listing was empty.
 *
 * Here it stays while the location points elsewhere than at its last complete sync: a user may
 * point it back. Without a record of that sync, as after Velero, at least half of the location's
 * backups must be present.
 */
export function judgeMissing(
  missing: readonly Backup[],
  {
    location,
    place,
    present,
    memory,
    nowMs,
  }: {
    readonly location: BackupStorageLocation;
    /** The hash of the current place. */
    readonly place: string;
    readonly present: number;
    readonly memory: SyncMemory;
    readonly nowMs: number;
  },
): ReadonlyMap<Backup, OrphanVerdict> {
  const looked = memory.miss(
    missing.map(({ metadata: { uid } }) => uid),
    nowMs,
  );
  const noted = location.metadata.annotations?.[SYNCED_PLACE];
  const areOthersThere = present >= missing.length;
  const isElsewhere = noted === undefined ? !areOthersThere : noted !== place;
  return new Map(
    missing.map((backup): [Backup, OrphanVerdict] => {
      if (isElsewhere) return [backup, 'elsewhere'];
      const { sinceMs = nowMs, looks = 0 } = looked.get(backup.metadata.uid) ?? {};
      const restMs = areOthersThere ? 0 : MOST_GONE_MS;
      const isSure = looks >= LOOKS && nowMs - sinceMs >= restMs;
      return [backup, isSure ? 'gone' : 'not sure yet'];
    }),
  );
}
