import { define, isCode, lookup } from '../base/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  type KubeClient,
  type KubeObject,
  NOT_IN_BACKUPS,
  PASSWORD_SECRET,
  SECRETS,
} from '../kube/index.ts';

/** Velero has one password for all repositories (pkg/repository/keys/keys.go). */
export const PASSWORD_KEY = 'repository-password';
/** Data of a change of all passwords: the next password, then the previous one. */
export const NEXT_PASSWORD_KEY = 'longshore-next-password';
export const PREVIOUS_PASSWORD_KEY = 'longshore-previous-password';
/**
 * Where earlier versions kept the keys of archives: beside the password. Only read and removed now.
 */
export const EARLIER_SIGNING_KEYS = 'longshore-earlier-signing-keys';
/** Data of the Secret of the keys: one key in each line, in hexadecimal digits. */
export const ARCHIVE_KEYS = 'keys';
/** Our choice of a label: the labels of an application would invite tools to prune the Secret. */
const ARCHIVE_KEYS_LABEL = { 'longshore.io/archive-keys': 'true' } as const;
/** Several processes may write the Secret at one time. Our choice. */
const TRIES_MAX = 8;

type SecretData = { readonly data?: Readonly<Record<string, string>> | undefined } | undefined;

/** The text of a key, as Velero reads it (pkg/repository/provider/unified_repo.go). */
export function passwordIn(secret: SecretData, key: string): string | undefined {
  const text = lookup(secret?.data, key);
  return text === undefined ? undefined : Buffer.from(text, 'base64').toString('utf8').trim();
}

/** Whether a text is a key of archives. */
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
  /** The next or the previous password, while the password is being changed. */
  readonly others: string[];
  /** Keys of archives from earlier passwords, and from other clusters. */
  readonly earlierKeys: string[];
  /** The keys that their own Secret has. Undefined if this account may not read it. */
  readonly keptKeys: string[] | undefined;
}

/**
 * The passwords of the repositories and the keys of archives, as the two Secrets have them.
 * Undefined without a password, or if this account may not read it. Throws other errors of the API
 * server.
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

/** Undefined for an account that may not read the Secret. */
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
 * Adds keys of archives to their Secret, also the keys that an earlier version left beside the
 * password. Creates the Secret. A key in it is never removed. May be repeated, by several processes
 * at one time. Returns all keys that the Secret has then, and how many are new. Throws errors of
 * the API server.
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
