import type { Body } from '../blob/index.ts';
import { stateOf, sumOf } from './signing/checksums.ts';
import {
  backupSchema,
  namesIn,
  type NativeSnapshot,
  type ResourceList,
  type ResourceNames,
  type Results,
  RESULTS,
  VOLUME_SNAPSHOT,
} from './file-schemas.ts';
import { encodeJsonGzip, encodeListsGzip, goJsonIndented } from './json-file.ts';
import type { BackupFile } from './layout.ts';
import type { ScratchFile, Sum } from './scratch-file.ts';
import { BACKUP_VOLUME_INFO, type BackupVolumeInfo } from './volume-infos.ts';

/** Files of a backup that change after its run. */
export interface BackupUpdate {
  readonly itemOperations?: readonly object[];
  readonly volumeInfos?: readonly BackupVolumeInfo[];
  readonly results?: Results;
  readonly podVolumeBackups?: readonly object[];
  /** The whole new tarball. Stays the caller's. */
  readonly contents?: ScratchFile;
  /** Put last, because its phase tells readers the state. */
  readonly metadata?: object;
}

/** All files of a backup, at the end of its run. */
export interface NewBackup extends Required<BackupUpdate> {
  /** Compressed; stays the caller's. */
  readonly log?: ScratchFile;
  /** Or kinds with their names, both sorted, which are computed on each read. */
  readonly resourceList: ResourceList | ResourceNames;
  readonly volumeSnapshots: readonly NativeSnapshot[];
}

export interface EncodedFile {
  readonly sum: Sum;
  read(): Body;
}

export function encodedBytes(bytes: Buffer): EncodedFile {
  return { sum: sumOf(bytes), read: () => [bytes] };
}

/** Files as Velero stores them, in the order in which they are put. */
export async function encodeFiles(
  files: Partial<Omit<NewBackup, 'log'>>,
): Promise<Map<BackupFile, EncodedFile>> {
  const encoded = new Map<BackupFile, EncodedFile>();
  const add = (file: BackupFile, bytes: Buffer): void => {
    encoded.set(file, encodedBytes(bytes));
  };
  const lists = {
    itemOperations: files.itemOperations,
    volumeInfos: files.volumeInfos?.map(BACKUP_VOLUME_INFO),
    volumeSnapshots: files.volumeSnapshots?.map(VOLUME_SNAPSHOT),
    podVolumeBackups: files.podVolumeBackups,
  };
  for (const [file, list] of Object.entries(lists)) {
    if (list) add(file as BackupFile, await encodeJsonGzip(nullIfNone(file as BackupFile, list)));
  }
  if (files.resourceList) {
    add('resourceList', await encodeListsGzip(namesIn(files.resourceList)));
  }
  if (files.results) add('results', await encodeJsonGzip(RESULTS(files.results)));
  const { contents, metadata } = files;
  if (contents) encoded.set('contents', { sum: contents.finish(), read: () => contents.read() });
  if (metadata) add('metadata', Buffer.from(goJsonIndented(metadata)));
  return encoded;
}

/** Velero writes an empty list of these files as `null`. */
const nullIfNone = (file: BackupFile, list: readonly unknown[]): readonly unknown[] | null =>
  list.length === 0 && (file === 'podVolumeBackups' || file === 'volumeSnapshots') ? null : list;

/** The sum of each file. Operations have none, because a checksum is inside. */
export const sumsOf = (
  files: ReadonlyMap<BackupFile, EncodedFile>,
): Map<BackupFile, Sum | undefined> =>
  new Map([...files].map(([file, { sum }]) => [file, file === 'itemOperations' ? undefined : sum]));

/** {@link stateOf} a Backup before it is put. */
export const stateIn = (metadata: object): string => stateOf(backupSchema.parse(metadata));

/** The UID of a Backup before it is put, or `''`. */
export const uidIn = (metadata: object): string => backupSchema.parse(metadata).metadata.uid ?? '';
