import { type Backup, type BackupStorageLocation, isUsable, validLabel } from '../../kube/index.ts';
import { phaseOf } from '../backups/backup-kind.ts';
import { SYNCED_PLACE } from './place.ts';
import { LOCATION_LABEL, locationOf } from './synced-objects.ts';
import type { SyncMemory } from './sync-memory.ts';

/** A Backup goes when so many complete listings after each other do not have it. Our choice. */
const LOOKS = 2;
/**
 * Where most are gone at once a disk may not be mounted, or a bucket be new: then they are looked
 * for this long. Our choice.
 */
const MOST_GONE_MS = 15 * 60_000;

/** Whether Backups may go that are not in the bucket, or why they stay. */
export type OrphanVerdict = 'gone' | 'not sure yet' | 'elsewhere';

/** Backups of a location whose names a complete listing does not have. */
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
      // Velero: backup_sync_controller.go, deleteOrphanedBackups (v1.18.3).
      // Backups in other phases never had files, or a server works on them.
      isUsable(phaseOf(backup)) &&
      backup.metadata.deletionTimestamp === undefined,
  );
  const present = own.filter(({ metadata }) => listed.has(metadata.name)).length;
  return { missing, present };
}

/**
 * Whether each of the missing Backups may be removed. Velero removes them at once, also when
 * somebody has pointed the location to another bucket or prefix, or when a listing came out empty.
 * Here they stay as long as the location points elsewhere than where its backups were last all
 * there: a person may point it back, or delete them. Of a location that nobody has noted this of,
 * as after Velero, at least as many of its backups have to be there as are missing: one that is
 * made meanwhile says nothing of the others.
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
    /** Where it points now. */
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
