import { CodedError, define, isCode, Secret } from '../../../base/index.ts';
import { type KubeClient, type KubeObject, PASSWORD_SECRET, SECRETS } from '../../../kube/index.ts';
import { signingKey, WELL_KNOWN_PASSWORD } from '../../../archive/index.ts';
import {
  EARLIER_SIGNING_KEYS,
  keepArchiveKeys,
  NEXT_PASSWORD_KEY,
  PASSWORD_KEY,
  passwordIn,
  PREVIOUS_PASSWORD_KEY,
} from '../../../repository-access/index.ts';

/**
 * The progress of a password change in the Secret. `next` exists until the Secret has it as its
 * current password. From then on `previous` exists, until the repositories are released.
 */
export interface PasswordState {
  readonly current: Secret;
  readonly next: Secret | undefined;
  readonly previous: Secret | undefined;
  /** The Secret as read, with its resource version. */
  readonly object: KubeObject & { readonly data?: Readonly<Record<string, string>> };
}

/** Throws `NO_PASSWORD`. */
export async function loadPasswordState(
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<PasswordState> {
  const object = await client.find(SECRETS, { namespace, name: PASSWORD_SECRET }, { signal });
  const valueOf = (key: string): Secret | undefined => {
    const text = passwordIn(object, key);
    return text === undefined ? undefined : new Secret(text);
  };
  const current = valueOf(PASSWORD_KEY);
  if (!object || !current) {
    const text = `Secret ${namespace}/${PASSWORD_SECRET} with the key ${PASSWORD_KEY} is not there: nothing is known of the password that the repositories have`;
    throw new CodedError('NO_PASSWORD', text);
  }
  return {
    current,
    object,
    next: valueOf(NEXT_PASSWORD_KEY),
    previous: valueOf(PREVIOUS_PASSWORD_KEY),
  };
}

/**
 * Writes the Secret once, over the version that was read. The signing key of the old password goes
 * into the Secret of earlier keys first: signed backups stay valid, and encrypted backups readable.
 * After that, keys of an earlier version beside the password are removed. Throws `KUBE_CONFLICT` if
 * the Secret was written meanwhile.
 */
export async function writePasswordState(
  client: KubeClient,
  { object, current: before }: PasswordState,
  { current, next, previous }: Pick<PasswordState, 'current' | 'next' | 'previous'>,
  signal: AbortSignal,
): Promise<void> {
  const isSecret = before.reveal() !== WELL_KNOWN_PASSWORD;
  const keys = isSecret ? [(await signingKey(before.reveal())).toString('hex')] : [];
  const beside = await keptBeside(client, object, keys, signal);
  const data: Record<string, string> = { ...object.data };
  const set = (key: string, value: Secret | undefined): void => {
    if (value) define(data, key, Buffer.from(value.reveal()).toString('base64'));
    else Reflect.deleteProperty(data, key);
  };
  set(PASSWORD_KEY, current);
  set(NEXT_PASSWORD_KEY, next);
  set(PREVIOUS_PASSWORD_KEY, previous);
  set(EARLIER_SIGNING_KEYS, beside);
  await client.replace(SECRETS, { ...object, data }, { signal });
}

/**
 * Keys that stay beside the password, because the account may not write the Secret of keys. A
 * permission to create Secrets would allow tokens of all accounts. The server moves the keys later.
 */
async function keptBeside(
  client: KubeClient,
  object: PasswordState['object'],
  keys: readonly string[],
  signal: AbortSignal,
): Promise<Secret | undefined> {
  const { namespace = '' } = object.metadata;
  try {
    await keepArchiveKeys({ client, namespace, signal }, keys);
    return undefined;
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
  }
  const beside = passwordIn(object, EARLIER_SIGNING_KEYS)?.split('\n') ?? [];
  const all = new Set([...beside, ...keys]);
  return all.size > 0 ? new Secret([...all].join('\n')) : undefined;
}

export const isSame = (a: Secret | undefined, b: Secret | undefined): boolean =>
  a !== undefined && b !== undefined && a.reveal() === b.reveal();
