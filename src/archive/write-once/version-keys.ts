import { randomHex } from '../../base/index.ts';
import { BACKUPS_FOLDER, isArchiveName, RESTORES_FOLDER } from '../layout.ts';

/**
 * The versions of a file that may still change: `FOLDER/longshore-once/FILE/00000001-3f9a0b12` for
 * `FOLDER/FILE`. The highest one counts. Velero reads only its own names, and deletes everything in
 * the folder of a backup or a restore.
 */
const VERSIONS = 'longshore-once';
/** Its subfolder for decisions. No file's name begins with an underscore. */
const SEALED = '_sealed';
const NUMBER_DIGITS = 8;
const VERSION = /^(\d{8,})-[0-9a-f]{8}$/;
/** Its objects already have unique keys with a random part. */
const JOURNALS = 'longshore-journal';

/** `backups/NAME/` or `restores/NAME/` of a key or prefix below it; undefined for others. */
export function runFolderOf(key: string): string | undefined {
  const top = [BACKUPS_FOLDER, RESTORES_FOLDER].find((each) => key.startsWith(each));
  if (top === undefined) return undefined;
  const end = key.indexOf('/', top.length);
  return end !== -1 && isArchiveName(key.slice(top.length, end))
    ? key.slice(0, end + 1)
    : undefined;
}

/** Whether the key's file may be put again, so that its versions have their own keys. */
export function mayChange(key: string): boolean {
  const folder = runFolderOf(key);
  if (folder === undefined || folder.length === key.length) return false;
  const parts = key.slice(folder.length).split('/');
  return parts[0] !== JOURNALS && !parts.includes(VERSIONS);
}

/** The folder with the versions of one file. */
export function versionsFolder(key: string): string {
  const at = key.lastIndexOf('/') + 1;
  return `${key.slice(0, at)}${VERSIONS}/${key.slice(at)}/`;
}

/** The folder with the versions of all files directly in a folder. */
export const allVersionsFolder = (folder: string): string => `${folder}${VERSIONS}/`;

/** The key after `last`. Numbers may repeat after a deletion; the random part does not. */
export function nextVersion(key: string, last: string | undefined): string {
  const number = last === undefined ? 1 : numberOf(last) + 1;
  return `${versionsFolder(key)}${String(number).padStart(NUMBER_DIGITS, '0')}-${randomHex(4)}`;
}

/** The file of a version, or undefined. */
export function fileOf(version: string): string | undefined {
  const parts = version.split('/');
  const at = parts.length - 3;
  if (at < 0 || parts[at] !== VERSIONS || !VERSION.test(parts[at + 2] ?? '')) return undefined;
  return [...parts.slice(0, at), parts[at + 1]].join('/');
}

/** Ascending, for versions of one file. */
export const byNumber = (a: string, b: string): number =>
  numberOf(a) - numberOf(b) || (a < b ? -1 : 1);

const numberOf = (version: string): number =>
  Number(VERSION.exec(version.slice(version.lastIndexOf('/') + 1))?.[1] ?? 0);

/** The folder of decisions for all UIDs. */
export const sealsFolder = (folder: string): string => `${folder}${VERSIONS}/${SEALED}/`;

/** The key of the decision for the Backup or Restore with a UID. */
export const sealKey = (folder: string, uid: string): string => `${sealsFolder(folder)}${uid}`;

/** Whether a folder has only versions. */
export const isVersionsFolder = (name: string): boolean => name === VERSIONS;
