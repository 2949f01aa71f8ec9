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
import { missingBackups } from './signing/missing-backups.ts';
import { isUnderWay, isUnstored, SIGNATURE, SIGNED } from '../kube/index.ts';
import { checksSignatures, type SignatureState } from './signing/signature.ts';
import { locationProblem, standingOf } from './backup-state.ts';
import type { StoredArchive } from './stored-archive.ts';

/** The cluster's knowledge of a location. */
export interface KnownObjects {
  /** Phases of the location's Backups, by name. */
  readonly backups: ReadonlyMap<string, string>;
  /** Names of backups that this cluster knows as signed. See {@link SIGNED}. */
  readonly signed?: ReadonlySet<string>;
  /** Signatures of finished backups, by name. See {@link SIGNATURE}. */
  readonly signatures?: ReadonlyMap<string, string>;
  /** Names of backups that may name a missing backup. See {@link IGNORE_MISSING}. */
  readonly withoutPrevious?: ReadonlySet<string>;
  /** When the last usable backup without a signature was completed that this cluster made. */
  readonly newestUnsigned?: string | undefined;
  /** Names of Restores in the cluster. */
  readonly restores: ReadonlySet<string>;
}

/**
 * A difference between a cluster and its bucket. `harm`: something cannot be restored, or takes
 * space that will never be freed. Other findings are information.
 */
export interface LocationFinding {
  readonly kind: FindingKind;
  /** The name of a backup, restore or folder. */
  readonly name: string;
  readonly harm: boolean;
  /** A sentence with the remedy. */
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
  | 'WrongSignature'
  | 'MissingBackup'
  | 'NotSigned'
  | 'SecretNotReadable'
  | 'RestoreNotInCluster';

export interface BackupTrust {
  readonly signature: SignatureState;
  /** False for an unsigned backup. */
  readonly isEncrypted: boolean;
}

export interface LocationSurvey {
  readonly backups: number;
  readonly restores: number;
  /** Number of backups by state. Empty without a password. */
  readonly signatures: Readonly<Partial<Record<SignatureState, number>>>;
  /** Keyed by the backup's name. Empty without a password. */
  readonly states: Readonly<Record<string, BackupTrust>>;
  readonly findings: readonly LocationFinding[];
}

interface Folder {
  keys: number;
  hasMetadata: boolean;
  hasContents: boolean;
  hasJournal: boolean;
}

/** Concurrent reads of metadata of unknown backups. */
const READS_AT_ONCE = 16;
/** Files may still be stored or deleted. */
const isStillMade = (phase: string): boolean => isUnderWay(phase) || phase === 'Deleting';

/**
 * Compares a bucket with the objects of a cluster, and changes nothing. Reads names, and metadata
 * of backups that the cluster lacks. To check signatures it reads all metadata. Memory holds an
 * entry for each backup and restore.
 * Lists the bucket before the cluster, so that a new backup is known. Looks again for a missing
 * backup. Throws errors of listings and of `loadKnown`.
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
    if (folders.get(name)?.hasMetadata === true || isUnstored(phase)) continue;
    // The backup may have ended after the listing.
    if (isStillMade(phase) || (await bucket.has(backupKey(name, 'metadata'), options))) continue;
    const text = `the Backup is ${phase}, and its files are not in the bucket: it cannot be restored; "longshore backup delete ${name}" removes what is left of it`;
    // A failed backup may never have had files.
    const kind = known.signed?.has(name) === true ? 'MissingBackup' : 'BackupWithoutFiles';
    add(kind, name, phase !== 'Failed', text);
  }
  const read: string[] = [];
  for (const [name, folder] of folders) {
    const phase = known.backups.get(name);
    const isMade = phase !== undefined && isStillMade(phase);
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
    const isSurveyed = phase === undefined || (checksSignatures(bucket) && !isMade);
    if (folder.hasMetadata && isSurveyed && isArchiveName(name)) read.push(name);
  }
  const looked = await mapLimited(read, READS_AT_ONCE, (name) =>
    lookAt(bucket, name, {
      ...options,
      isKnown: known.backups.has(name),
      wasSigned: known.signed?.has(name) === true,
      knownSignature: known.signatures?.get(name),
    }),
  );
  findings.push(...looked.flatMap((each) => each.findings));
  const missing = await missingBackups(
    bucket,
    looked.flatMap((each) => each.stored ?? []),
    {
      ...options,
      phaseOf: (name) => known.backups.get(name),
      isListed: (name) => folders.get(name)?.hasMetadata === true,
      isIgnored: (name) => known.withoutPrevious?.has(name) === true,
      newestUnsigned: known.newestUnsigned,
    },
  );
  for (const { name, harm, text } of missing) {
    if (!findings.some((each) => each.kind === 'MissingBackup' && each.name === name)) {
      add('MissingBackup', name, harm, text);
    }
  }

  for (const name of restores) {
    if (known.restores.has(name)) continue;
    const text =
      'files of a restore by another cluster, or of one whose Restore is gone; they go with their backup';
    add('RestoreNotInCluster', name, false, text);
  }
  const backups = [...folders.values()].filter(({ hasMetadata }) => hasMetadata).length;
  const checked = checksSignatures(bucket) ? looked.flatMap(({ stored }) => stored ?? []) : [];
  const states = checked.map(({ name, signature, link }) => {
    const trust: BackupTrust = { signature, isEncrypted: link.isEncrypted === true };
    return [name, trust] as const;
  });
  return {
    backups,
    restores: restores.length,
    signatures: countEach(checked.map(({ signature }) => signature)),
    states: Object.fromEntries(states),
    findings,
  };
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

/** False if it was deleted or finished since the listing. */
async function isStillUnfinished(
  bucket: Bucket,
  name: string,
  options: SignalOptions,
): Promise<boolean> {
  if (await bucket.has(backupKey(name, 'metadata'), options)) return false;
  for await (const key of bucket.list(`${BACKUPS_FOLDER}${name}/`, options)) return key !== '';
  return false;
}

function countEach(states: readonly SignatureState[]): Partial<Record<SignatureState, number>> {
  const counts: Partial<Record<SignatureState, number>> = {};
  for (const state of states) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

interface Looked {
  readonly stored?: StoredArchive;
  readonly findings: readonly LocationFinding[];
}

type LookOptions = SignalOptions & {
  readonly nowNs: Nanoseconds;
  readonly isKnown: boolean;
  readonly wasSigned: boolean;
  readonly knownSignature: string | undefined;
};

async function lookAt(bucket: Bucket, name: string, options: LookOptions): Promise<Looked> {
  let stored: StoredArchive;
  try {
    stored = await new BackupArchive(bucket).open(name, options);
  } catch (error) {
    options.signal?.throwIfAborted();
    // Deleted meanwhile.
    if (isCode(error, 'BLOB_NOT_FOUND')) return { findings: [] };
    const why = options.isKnown ? 'it cannot be restored' : 'no cluster will know it';
    const text = `its metadata cannot be read, and ${why}: ${messageOf(error)}`;
    return { findings: [{ kind: 'DamagedBackup', name, harm: true, text }] };
  }
  const distrust = checksSignatures(bucket) ? distrustOf(stored, options) : undefined;
  const absence = options.isKnown ? undefined : absenceOf(stored, options);
  const findings = [distrust, absence].filter((each) => each !== undefined);
  return { stored, findings };
}

/** Reports a wrong or missing signature of a backup. */
function distrustOf(
  stored: StoredArchive,
  { wasSigned, knownSignature }: LookOptions,
): LocationFinding | undefined {
  const { name, signature } = stored;
  const annotations = {
    ...(wasSigned && { [SIGNED]: 'true' }),
    ...(knownSignature !== undefined && { [SIGNATURE]: knownSignature }),
  };
  try {
    stored.assertTrusted({ metadata: { annotations } });
  } catch (error) {
    const kind = isCode(error, 'WRONG_SIGNATURE') ? 'WrongSignature' : 'NotSigned';
    return { kind, name, harm: true, text: messageOf(error) };
  }
  if (signature === 'signed') return undefined;
  const text =
    signature === 'unknown'
      ? 'another repository password signed it: nothing tells whether its files were changed'
      : 'it has no signature: Velero or an earlier version made it';
  return { kind: 'NotSigned', name, harm: false, text };
}

/** Why a backup in the bucket is not in the cluster. */
function absenceOf({ name, metadata }: StoredArchive, options: LookOptions): LocationFinding {
  if (standingOf(metadata, options.nowNs) === 'unfinished') {
    const text = `another cluster is making it, or has stopped making it: it is ${metadata.status?.phase ?? 'New'}`;
    return { kind: 'UnfinishedBackup', name, harm: false, text };
  }
  const text = 'it is not in the cluster yet: a server with the controller backup-sync brings it';
  return { kind: 'BackupNotInCluster', name, harm: false, text };
}
