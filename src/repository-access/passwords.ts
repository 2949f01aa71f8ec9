import { define, isCode, lookup } from '../base/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  type KubeClient,
  type KubeObject,
  NOT_IN_BACKUPS,
  PASSWORD_SECRET,
  SECRETS,
} from '../kube/index.ts';

/** Velero uses one password for all repositories (pkg/repository/keys/keys.go). */
export const PASSWORD_KEY = 'repository-password';
/** Used while the passwords are being changed: the next password, then the previous one. */
export const NEXT_PASSWORD_KEY = 'longshore-next-password';
export const PREVIOUS_PASSWORD_KEY = 'longshore-previous-password';
/** Archive keys in the password's Secret, from earlier versions. Only read and removed. */
export const EARLIER_SIGNING_KEYS = 'longshore-earlier-signing-keys';
/** Data key of the archive keys' Secret: one key a line, in hex. */
export const ARCHIVE_KEYS = 'keys';
/** Our choice of a label. An application's labels would invite tools to prune the Secret. */
const ARCHIVE_KEYS_LABEL = { 'longshore.io/archive-keys': 'true' } as const;
/** Retries after conflicts, because several processes may write the Secret. Our choice. */
const TRIES_MAX = 8;

type SecretData = { readonly data?: Readonly<Record<string, string>> | undefined } | undefined;

/** The text of a Secret's key, trimmed like in Velero (pkg/repository/provider/unified_repo.go). */
export function passwordIn(secret: SecretData, key: string): string | undefined {
  const text = lookup(secret?.data, key);
  return text === undefined ? undefined : Buffer.from(text, 'base64').toString('utf8').trim();
}

export const isArchiveKey = (text: string): boolean => /^[0-9a-f]{64}$/.test(text);

const keysIn = (secret: SecretData, key: string): string[] =>
  (passwordIn(secret, key) ?? '')
    .split('\n')
    .map((line) => line.trim())
    .filter(isArchiveKey);

interface PasswordAccess {
  readonly client: Pick<KubeClient, 'find'>;
  readonly namespace: string;
  readonly signal: AbortSignal;
}

export interface RepositoryPasswords {
  readonly current: string;
  /** The next and the previous password, during a password change. */
  readonly others: string[];
  /** Archive keys from earlier passwords and other clusters. */
  readonly earlierKeys: string[];
  /** Keys in their own Secret. Undefined if this account may not read it. */
  readonly keptKeys: string[] | undefined;
}

/**
 * Repository passwords and archive keys from the two Secrets. Undefined if there is no password, or
 * if this account may not read it. Throws other API server errors.
 */
export async function repositoryPasswords(
  access: PasswordAccess,
): Promise<RepositoryPasswords | undefined> {
  const [secret, kept] = await Promise.all([
    findReadable(access, PASSWORD_SECRET),
    findReadable(access, ARCHIVE_KEYS_SECRET),
  ]);
  const valueOf = (key: string): string | undefined => passwordIn(secret?.found, key);
  const current = valueOf(PASSWORD_KEY);
  if (current === undefined) return undefined;
  const others = [NEXT_PASSWORD_KEY, PREVIOUS_PASSWORD_KEY].map(valueOf);
  const keptKeys = kept && keysIn(kept.found, ARCHIVE_KEYS);
  const beside = keysIn(secret?.found, EARLIER_SIGNING_KEYS);
  return {
    current,
    others: others.filter((each) => each !== undefined),
    earlierKeys: [...new Set([...(keptKeys ?? []), ...beside])],
    keptKeys,
  };
}

/** Undefined if this account may not read the Secret. */
async function findReadable(
  { client, namespace, signal }: PasswordAccess,
  name: string,
): Promise<{ readonly found: (KubeObject & SecretData) | undefined } | undefined> {
  try {
    return { found: await client.find(SECRETS, { namespace, name }, { signal }) };
  } catch (error) {
    if (isCode(error, 'KUBE_FORBIDDEN')) return undefined;
    throw error;
  }
}

/**
 * Adds archive keys to their Secret, including keys that earlier versions left in the password's
 * Secret. Creates the Secret if missing, and never removes a key. Can be repeated and run
 * concurrently. Returns all keys in the Secret, and the number of new keys. Throws API server
 * errors.
 */
export async function keepArchiveKeys(
  access: PasswordAccess & { readonly client: Pick<KubeClient, 'find' | 'create' | 'replace'> },
  keys: readonly string[],
): Promise<{ readonly all: readonly string[]; readonly added: number }> {
  const { client, namespace, signal } = access;
  const password = await client.find(SECRETS, { namespace, name: PASSWORD_SECRET }, { signal });
  const wanted = [...keysIn(password, EARLIER_SIGNING_KEYS), ...keys];
  const ref = { namespace, name: ARCHIVE_KEYS_SECRET };
  for (let tries = 1; ; tries++) {
    const found = await client.find(SECRETS, ref, { signal });
    const kept = keysIn(found, ARCHIVE_KEYS);
    const all = [...new Set([...kept, ...wanted])];
    const added = all.length - kept.length;
    if (added === 0) return { all, added };
    const data = { ...found?.data };
    define(data, ARCHIVE_KEYS, Buffer.from(`${all.join('\n')}\n`).toString('base64'));
    try {
      if (found) await client.replace(SECRETS, { ...found, data }, { signal });
      else {
        const labels = { ...ARCHIVE_KEYS_LABEL, ...NOT_IN_BACKUPS };
        await client.create(SECRETS, { metadata: { ...ref, labels }, data }, { signal });
      }
      return { all, added };
    } catch (error) {
      const isLate = isCode(error, 'KUBE_CONFLICT', 'KUBE_ALREADY_EXISTS', 'KUBE_NOT_FOUND');
      if (!isLate || tries === TRIES_MAX) throw error;
    }
  }
}
