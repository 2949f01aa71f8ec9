import { text as textOf } from 'node:stream/consumers';
import { signingKey, WELL_KNOWN_PASSWORD } from '../archive/index.ts';
import { CodedError } from '../base/index.ts';
import { PASSWORD_SECRET, SECRETS } from '../kube/index.ts';
import { EARLIER_SIGNING_KEYS, repositoryPasswords } from '../repository-access/index.ts';
import { type Session, withSession } from './backups/session.ts';
import type { ClusterFlags } from './cluster.ts';
import { printLine } from './terminal.ts';

/** Prints the keys of the cluster's archives, each on a line. Throws `NO_PASSWORD`. */
export async function printArchiveKeys(flags: ClusterFlags): Promise<void> {
  const keys = await withSession(flags, async (session) => {
    const passwords = await repositoryPasswords(session);
    if (!passwords) throw noPassword(session);
    const secret = [passwords.current].filter((each) => each !== WELL_KNOWN_PASSWORD);
    const own = await Promise.all(secret.map(signingKey));
    return [...own.map((key) => key.toString('hex')), ...passwords.earlierKeys];
  });
  for (const key of keys) printLine(key);
}

/** Adds keys from standard input to the Secret. Throws `NO_PASSWORD`, `BAD_ARCHIVE_KEY`. */
export async function addArchiveKeys(flags: ClusterFlags): Promise<void> {
  const given = (await textOf(process.stdin)).split('\n').map((line) => line.trim());
  const keys = given.filter((line) => line !== '');
  if (keys.length === 0 || !keys.every((key) => /^[0-9a-f]{64}$/.test(key))) {
    const text =
      'standard input must have a key on each line: 64 hexadecimal digits, as "longshore repository archive-keys" prints them';
    throw new CodedError('BAD_ARCHIVE_KEY', text);
  }
  await withSession(flags, async (session) => {
    const { client, namespace, signal } = session;
    const secret = await client.find(SECRETS, { namespace, name: PASSWORD_SECRET }, { signal });
    const passwords = await repositoryPasswords(session);
    if (!secret || !passwords) throw noPassword(session);
    const all = [...new Set([...passwords.earlierKeys, ...keys])];
    const data = { [EARLIER_SIGNING_KEYS]: Buffer.from(all.join('\n')).toString('base64') };
    const { uid, resourceVersion } = secret.metadata;
    await client.patch(
      SECRETS,
      secret.metadata,
      { metadata: { uid, resourceVersion }, data },
      { signal },
    );
    const added = all.length - passwords.earlierKeys.length;
    printLine(
      `${added} keys are new in Secret ${namespace}/${PASSWORD_SECRET}, which has ${all.length} now`,
    );
  });
}

const noPassword = ({ namespace }: Session): CodedError =>
  new CodedError('NO_PASSWORD', `Secret ${namespace}/${PASSWORD_SECRET} cannot be read`);
