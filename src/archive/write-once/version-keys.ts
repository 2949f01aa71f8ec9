import { randomHex } from '../../base/index.ts';
import { BACKUPS_FOLDER, isArchiveName, RESTORES_FOLDER } from '../layout.ts';

/**
 * Where the versions of a file lie while it may still change:
 * `FOLDER/longshore-once/FILE/00000001-3f9a0b12` for `FOLDER/FILE`. The highest one counts. Velero
 * reads its own names only, and deletes everything below the folder of a backup or a restore with
 * it.
 */
const VERSIONS = 'longshore-once';
/**
 * In it, what was published of a backup or a restore. No name of a file has an underscore at its
 * beginning.
 */
const SEALED = '_sealed';
const NUMBER_DIGITS = 8;
const VERSION = /^(\d{8,})-[0-9a-f]{8}$/;
/** Its objects have keys of their own already, with a part at random. */
const JOURNALS = 'longshore-journal';

/**
 * `backups/NAME/`, `restores/NAME/`, of a key or a prefix that lies in it; undefined of any other
 * one.
 */
export function runFolderOf(key: string): string | undefined {
  const top = [BACKUPS_FOLDER, RESTORES_FOLDER].find((each) => key.startsWith(each));
  if (top === undefined) return undefined;
  const end = key.indexOf('/', top.length);
  return end !== -1 && isArchiveName(key.slice(top.length, end))
    ? key.slice(0, end + 1)
    : undefined;
}

/**
 * Whether a key is one of a file that may be put again, and whose versions are kept apart until
 * then.
 */
export function mayChange(key: string): boolean {
  const folder = runFolderOf(key);
  if (folder === undefined || folder.length === key.length) return false;
  const parts = key.slice(folder.length).split('/');
  return parts[0] !== JOURNALS && !parts.includes(VERSIONS);
}

/** Of the versions of one file. */
export function versionsFolder(key: string): string {
  const at = key.lastIndexOf('/') + 1;
  return `${key.slice(0, at)}${VERSIONS}/${key.slice(at)}/`;
}

/** Of the versions of all files right in a folder. */
export const allVersionsFolder = (folder: string): string => `${folder}${VERSIONS}/`;

/**
 * The next one after `last`. The part at random keeps a number that comes again, after a deletion
 * or from another process, from being a key that was put before.
 */
export function nextVersion(key: string, last: string | undefined): string {
  const number = last === undefined ? 1 : numberOf(last) + 1;
  return `${versionsFolder(key)}${String(number).padStart(NUMBER_DIGITS, '0')}-${randomHex(4)}`;
}

/** The file that a key is a version of; undefined where it is none. */
export function fileOf(version: string): string | undefined {
  const parts = version.split('/');
  const at = parts.length - 3;
  if (at < 0 || parts[at] !== VERSIONS || !VERSION.test(parts[at + 2] ?? '')) return undefined;
  return [...parts.slice(0, at), parts[at + 1]].join('/');
}

/** Ascending. Versions of one file only. */
export const byNumber = (a: string, b: string): number =>
  numberOf(a) - numberOf(b) || (a < b ? -1 : 1);

const numberOf = (version: string): number =>
  Number(VERSION.exec(version.slice(version.lastIndexOf('/') + 1))?.[1] ?? 0);

/** Of what was published in a folder, of any UID. */
export const sealsFolder = (folder: string): string => `${folder}${VERSIONS}/${SEALED}/`;

/** What says which versions were published of the Backup or Restore with a UID. */
export const sealKey = (folder: string, uid: string): string => `${sealsFolder(folder)}${uid}`;

/** Whether a folder is one of ours, and shows no file by itself. */
export const isVersionsFolder = (name: string): boolean => name === VERSIONS;
