import { text as textOf } from 'node:stream/consumers';
import { signingKey, WELL_KNOWN_PASSWORD } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import { ARCHIVE_KEYS_SECRET, PASSWORD_SECRET } from '../../kube/index.ts';
import {
  isArchiveKey,
  keepArchiveKeys,
  repositoryPasswords,
} from '../../repository-access/index.ts';
import { type Session, withSession } from '../backups/session.ts';
import type { ClusterFlags } from '../cluster.ts';
import { PasswordPrompt, readPassword } from '../password.ts';
import { printLine } from '../output/terminal.ts';

/** Password files. The key of each password is derived without a cluster. */
export interface PasswordFileFlags {
  readonly passwordFile?: readonly string[] | undefined;
}

/**
 * Reads passwords from files. Drops the well-known one, which signs nothing. Throws `NO_PASSWORD`.
 */
export async function passwordsIn(files: readonly string[]): Promise<string[]> {
  using prompt = new PasswordPrompt();
  const passwords: string[] = [];
  for (const passwordFile of files) {
    // The Secret is read in the same way: spaces around the password do not count.
    passwords.push((await readPassword({ passwordFile }, prompt)).reveal().trim());
  }
  return passwords.filter((each) => each !== WELL_KNOWN_PASSWORD);
}

/** Prints the keys of a cluster, or of passwords in files, one per line. Throws `NO_PASSWORD`. */
export async function printArchiveKeys(flags: ClusterFlags & PasswordFileFlags): Promise<void> {
  if (flags.passwordFile) {
    const derived = await Promise.all((await passwordsIn(flags.passwordFile)).map(signingKey));
    for (const key of new Set(derived.map((each) => each.toString('hex')))) printLine(key);
    return;
  }
  const keys = await withSession(flags, async (session) => {
    const passwords = await repositoryPasswords(session);
    if (!passwords) throw noPassword(session);
    const secret = [passwords.current].filter((each) => each !== WELL_KNOWN_PASSWORD);
    const own = await Promise.all(secret.map(signingKey));
    return new Set([...own.map((key) => key.toString('hex')), ...passwords.earlierKeys]);
  });
  for (const key of keys) printLine(key);
}

/** Adds keys from standard input. Throws `BAD_ARCHIVE_KEY`, and errors of the API server. */
export async function addArchiveKeys(flags: ClusterFlags): Promise<void> {
  const keys = keysIn(await textOf(process.stdin), 'standard input');
  await withSession(flags, async (session) => {
    const { added, all } = await keepArchiveKeys(session, keys);
    printLine(
      `${added} keys are new in Secret ${session.namespace}/${ARCHIVE_KEYS_SECRET}, which has ${all.length} now`,
    );
  });
}

/** Keys of archives, one per line. Throws `BAD_ARCHIVE_KEY`. */
export function keysIn(text: string, source: string): string[] {
  const lines = text.split('\n').map((line) => line.trim());
  const keys = lines.filter((line) => line !== '');
  if (keys.length > 0 && keys.every(isArchiveKey)) return keys;
  throw new CodedError(
    'BAD_ARCHIVE_KEY',
    `${source} must have a key on each line: 64 hexadecimal digits, as "longshore repository archive-keys" prints them`,
  );
}

const noPassword = ({ namespace }: Session): CodedError =>
  new CodedError('NO_PASSWORD', `Secret ${namespace}/${PASSWORD_SECRET} cannot be read`);
