import { isCode, mapLimited, messageOf, type Nanoseconds } from '../base/index.ts';
import type { Bucket, SignalOptions } from '../blob/index.ts';
import { BackupArchive } from './backup-archive.ts';
import {
  backupKey,
  BACKUPS_FOLDER,
  isArchiveName,
  journalsFolder,
  RESTORES_FOLDER,
} from './layout.ts';
import { locationProblem, standingOf } from './states.ts';

/** What a cluster knows of a location. */
export interface KnownObjects {
  /** Backups whose location it is, by name, with their phase. */
  readonly backups: ReadonlyMap<string, string>;
  /** Of Restores of the cluster. */
  readonly restores: ReadonlySet<string>;
}

/**
 * One thing that is not as a cluster and its bucket should have it. `harm`: something cannot be restored, or takes space that nobody will
 * free; the others are only good to know.
 */
export interface LocationFinding {
  readonly kind: FindingKind;
  /** Of a backup, restore or folder. */
  readonly name: string;
  readonly harm: boolean;
  /** A sentence with what to do. */
  readonly text: string;
}

export type FindingKind =
  | 'ForeignFolder'
  | 'OrphanedFiles'
  | 'UnfinishedBackup'
  | 'DamagedBackup'
  | 'IncompleteBackup'
  | 'BackupWithoutFiles'
  | 'BackupNotInCluster'
  | 'RestoreNotInCluster';

export interface LocationSurvey {
  readonly backups: number;
  readonly restores: number;
  readonly findings: readonly LocationFinding[];
}

interface Folder {
  keys: number;
  hasMetadata: boolean;
  hasContents: boolean;
  hasJournal: boolean;
}

/** Metadata of backups that the cluster does not know, read side by side. */
const READS_AT_ONCE = 16;
/** Nothing is stored of these, or not yet. */
const WITHOUT_FILES = ['', 'New', 'Queued', 'ReadyToStart', 'FailedValidation', 'InProgress'];
const RUNNING = [
  'InProgress',
  'WaitingForPluginOperations',
  'WaitingForPluginOperationsPartiallyFailed',
];
const STILL_MADE = [...RUNNING, 'Finalizing', 'FinalizingPartiallyFailed', 'Deleting'];

/**
 * Compares what lies in a bucket with what a cluster knows: reads names, and metadata of backups that the cluster does not have. Changes nothing.
 * In memory is an entry for each backup and restore. The cluster is asked after the bucket, so that a backup that begins meanwhile is one that it
 * knows; one that goes meanwhile is looked for again. Throws what the bucket throws for a listing, and what `loadKnown` throws.
 */
export async function surveyLocation(
  bucket: Bucket,
  loadKnown: () => Promise<KnownObjects>,
  options: SignalOptions & { readonly nowNs: Nanoseconds },
): Promise<LocationSurvey> {
  const findings: LocationFinding[] = [];
  const add = (kind: FindingKind, name: string, harm: boolean, text: string): void => {
    findings.push({ kind, name, harm, text });
  };
  const foreign = await locationProblem(bucket, options);
  if (foreign !== undefined) {
    const text = `${foreign}: Velero calls the location unavailable until they are moved elsewhere`;
    add('ForeignFolder', '/', true, text);
  }

  const folders = await backupFolders(bucket, options);
  const restores = await namesIn(bucket.listFolders(RESTORES_FOLDER, options));
  const known = await loadKnown();
  for (const [name, phase] of known.backups) {
    if (folders.get(name)?.hasMetadata === true || WITHOUT_FILES.includes(phase)) continue;
    // Its end may have come after the listing.
    if (STILL_MADE.includes(phase) || (await bucket.has(backupKey(name, 'metadata'), options)))
      continue;
    const text = `the Backup is ${phase}, and its files are not in the bucket: it cannot be restored; "longshore backup delete ${name}" removes what is left of it`;
    // Of one that has failed there may never have been any.
    add('BackupWithoutFiles', name, phase !== 'Failed', text);
  }
  const unknown: string[] = [];
  for (const [name, folder] of folders) {
    const phase = known.backups.get(name);
    const isMade = phase !== undefined && STILL_MADE.includes(phase);
    if (!isArchiveName(name)) {
      const text = `no Backup can have this name: ${filesText(folder.keys)} that somebody else put there`;
      add('OrphanedFiles', name, true, text);
    } else if (!folder.hasMetadata && !isMade) {
      if (!(await isStillUnfinished(bucket, name, options))) continue;
      const what = folder.hasJournal
        ? 'a backup that was begun and never finished, whose Backup is not here'
        : 'files of a backup without its metadata';
      const text = `${what}: ${filesText(folder.keys)} that nobody will remove; where no other cluster is making it, delete ${BACKUPS_FOLDER}${name}/`;
      add(folder.hasJournal ? 'UnfinishedBackup' : 'OrphanedFiles', name, true, text);
    } else if (folder.hasMetadata && !folder.hasContents && !isMade) {
      const text = `${backupKey(name, 'contents')} is missing: its objects cannot be restored`;
      add('IncompleteBackup', name, true, text);
    }
    if (folder.hasMetadata && phase === undefined && isArchiveName(name)) unknown.push(name);
  }
  const archive = new BackupArchive(bucket);
  const looked = await mapLimited(unknown, READS_AT_ONCE, (name) => lookAt(archive, name, options));
  findings.push(...looked.filter((each) => each !== undefined));

  for (const name of restores) {
    if (known.restores.has(name)) continue;
    const text =
      'files of a restore by another cluster, or of one whose Restore is gone; they go with their backup';
    add('RestoreNotInCluster', name, false, text);
  }
  const backups = [...folders.values()].filter(({ hasMetadata }) => hasMetadata).length;
  return { backups, restores: restores.length, findings };
}

const filesText = (count: number): string => (count === 1 ? '1 file' : `${count} files`);

async function backupFolders(bucket: Bucket, options: SignalOptions): Promise<Map<string, Folder>> {
  const folders = new Map<string, Folder>();
  for await (const key of bucket.list(BACKUPS_FOLDER, options)) {
    const rest = key.slice(BACKUPS_FOLDER.length);
    const slash = rest.indexOf('/');
    const name = slash < 0 ? rest : rest.slice(0, slash);
    if (name === '') continue;
    let folder = folders.get(name);
    if (!folder) {
      folder = { keys: 0, hasMetadata: false, hasContents: false, hasJournal: false };
      folders.set(name, folder);
    }
    folder.keys++;
    if (!isArchiveName(name)) continue;
    folder.hasMetadata ||= key === backupKey(name, 'metadata');
    folder.hasContents ||= key === backupKey(name, 'contents');
    folder.hasJournal ||= key.startsWith(journalsFolder(name));
  }
  return folders;
}

async function namesIn(names: AsyncIterable<string>): Promise<string[]> {
  const all: string[] = [];
  for await (const name of names) all.push(name);
  return all;
}

/** False where it was removed, or finished, since the listing. */
async function isStillUnfinished(
  bucket: Bucket,
  name: string,
  options: SignalOptions,
): Promise<boolean> {
  if (await bucket.has(backupKey(name, 'metadata'), options)) return false;
  for await (const key of bucket.list(`${BACKUPS_FOLDER}${name}/`, options)) return key !== '';
  return false;
}

/** Why a backup in the bucket is not in the cluster. */
async function lookAt(
  archive: BackupArchive,
  name: string,
  options: SignalOptions & { readonly nowNs: Nanoseconds },
): Promise<LocationFinding | undefined> {
  try {
    const metadata = await archive.loadMetadata(name, options);
    if (standingOf(metadata, options.nowNs) === 'unfinished') {
      const text = `another cluster is making it, or has stopped making it: it is ${metadata.status?.phase ?? 'New'}`;
      return { kind: 'UnfinishedBackup', name, harm: false, text };
    }
    const text = 'it is not in the cluster yet: a server with the controller backup-sync brings it';
    return { kind: 'BackupNotInCluster', name, harm: false, text };
  } catch (error) {
    options.signal?.throwIfAborted();
    // Deleted meanwhile.
    if (isCode(error, 'BLOB_NOT_FOUND')) return undefined;
    const text = `its metadata cannot be read, and no cluster will know it: ${messageOf(error)}`;
    return { kind: 'DamagedBackup', name, harm: true, text };
  }
}
