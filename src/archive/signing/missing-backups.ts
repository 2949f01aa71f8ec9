import { type Nanoseconds, parseGoTime, silentLogger } from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { DeletionNotes, type PreviousBackup } from './deletion-notes.ts';
import { backupKey, isArchiveName } from '../layout.ts';
import { signingOf } from './signature.ts';
import type { StoredArchive } from '../stored-archive.ts';

/** Annotation of a Backup. Set by a person who knows why the previous backup is missing. */
export const IGNORE_MISSING = 'longshore.io/ignore-missing';

export interface Surroundings extends SignalOptions {
  readonly nowNs: Nanoseconds;
  /** Undefined for a backup that the cluster lacks. */
  readonly phaseOf: (name: string) => string | undefined;
  readonly isListed: (name: string) => boolean;
  readonly isIgnored: (name: string) => boolean;
  /** See {@link KnownObjects}. */
  readonly newestUnsigned?: string | undefined;
}

export interface MissingBackup {
  readonly name: string;
  /** False if there may be another reason than an attack. False alarms hide the right ones. */
  readonly harm: boolean;
  readonly text: string;
}

const UNKNOWN_NOTE =
  'An unknown key signed a note of its deletion. If another cluster deleted it, add its keys with "longshore repository add-archive-keys"';

/** Finds predecessors of signed backups that are missing without a deletion note. */
export async function missingBackups(
  bucket: Bucket,
  stored: readonly StoredArchive[],
  around: Surroundings,
): Promise<MissingBackup[]> {
  const found = new Map<string, MissingBackup>();
  for (const each of stored) {
    const { previous } = each.link;
    if (!previous || around.isIgnored(each.name)) continue;
    const other = stored.find(({ name }) => name === previous.name);
    if (other && isReplaced(other, previous)) {
      const text = `somebody replaced its files: their signature differs from the signature in backup ${each.name}. If you know why, annotate Backup ${each.name} with ${IGNORE_MISSING}=true`;
      found.set(`${previous.name} ${previous.uid}`, { name: previous.name, harm: true, text });
      continue;
    }
    if (!(await isGone(bucket, previous, other, around))) continue;
    const note = await new DeletionNotes(bucket, silentLogger).stateOf(previous, around);
    if (note === 'noted') continue;
    const doubt = note === 'unknown' ? undefined : doubtOf(bucket, previous, stored, around);
    const named = `it is missing: backup ${each.name} names it as the one before it`;
    const why = note === 'unknown' ? `. ${UNKNOWN_NOTE}` : ', and Longshore did not delete it';
    const text =
      doubt === undefined
        ? `${named}${why}. If you know why, annotate Backup ${each.name} with ${IGNORE_MISSING}=true`
        : `${named}. The reason is unknown: ${doubt}`;
    const key = `${previous.name} ${previous.uid}`;
    if (found.get(key)?.harm === true) continue;
    found.set(key, { name: previous.name, harm: doubt === undefined, text });
  }
  return [...found.values()];
}

/**
 * The named backup had ended, so neither its files nor its signature change. Wrong signatures are
 * reported elsewhere.
 */
function isReplaced(
  { signature, metadata, link }: StoredArchive,
  previous: PreviousBackup,
): boolean {
  if (metadata.metadata.uid !== previous.uid) return false;
  return signature === 'unsigned' || (signature === 'signed' && link.mac !== previous.mac);
}

/** False for a backup that exists, has expired, is being deleted, or is unreadable. */
async function isGone(
  bucket: Bucket,
  { name, uid, expiration }: PreviousBackup,
  other: StoredArchive | undefined,
  { signal, nowNs, phaseOf, isListed }: Surroundings,
): Promise<boolean> {
  if (!isArchiveName(name) || !isArchiveName(uid)) return false;
  if (expiration !== undefined && parseGoTime(expiration) <= nowNs) return false;
  if (phaseOf(name) === 'Deleting') return false;
  if (isListed(name)) return other !== undefined && other.metadata.metadata.uid !== uid;
  // The listing may be out of date.
  return !(await bucket.has(backupKey(name, 'metadata'), { signal }));
}

/**
 * Harmless reasons for a missing backup. Anybody can store unsigned backups in the bucket, so only
 * those count that this cluster made.
 */
function doubtOf(
  bucket: Bucket,
  { completed = '' }: PreviousBackup,
  stored: readonly StoredArchive[],
  { newestUnsigned = '' }: Surroundings,
): string | undefined {
  if (newestUnsigned > completed && signingOf(bucket)?.isRequired !== true) {
    return 'Velero, or another program that makes backups in this cluster, may have deleted it';
  }
  const isOlder = ({ signature, metadata: { status } }: StoredArchive): boolean =>
    signature === 'signed' && (status?.completionTimestamp ?? '') < completed;
  if (stored.some(isOlder)) return undefined;
  return 'no older backup is there, as after a lifecycle rule, or in a copy of a part of the bucket';
}
