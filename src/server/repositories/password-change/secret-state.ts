import { CodedError, define, Secret } from '../../../base/index.ts';
import { type KubeClient, type KubeObject, PASSWORD_SECRET, SECRETS } from '../../../kube/index.ts';
import { signingKey, WELL_KNOWN_PASSWORD } from '../../../archive/index.ts';
import {
  EARLIER_SIGNING_KEYS,
  NEXT_PASSWORD_KEY,
  PASSWORD_KEY,
  passwordIn,
  PREVIOUS_PASSWORD_KEY,
} from '../../../repository-access/index.ts';

/**
 * What the Secret of the password says about a change of all repositories. `next` is there from before the first repository is touched
 * until the Secret itself has it as its password; `previous` from that moment on, until everybody may use the repositories again.
 */
export interface PasswordState {
  readonly current: Secret;
  readonly next: Secret | undefined;
  readonly previous: Secret | undefined;
  /** As it was read, with its version. */
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
    ...{ current, object },
    next: valueOf(NEXT_PASSWORD_KEY),
    previous: valueOf(PREVIOUS_PASSWORD_KEY),
  };
}

/** One write, based on what was read. Throws `KUBE_CONFLICT` where the Secret was written meanwhile. */
export async function writePasswordState(
  client: KubeClient,
  { object, current: before }: PasswordState,
  { current, next, previous }: Pick<PasswordState, 'current' | 'next' | 'previous'>,
  signal: AbortSignal,
): Promise<void> {
  const data: Record<string, string> = { ...object.data };
  const set = (key: string, value: Secret | undefined): void => {
    if (value) define(data, key, Buffer.from(value.reveal()).toString('base64'));
    else Reflect.deleteProperty(data, key);
  };
  set(PASSWORD_KEY, current);
  set(NEXT_PASSWORD_KEY, next);
  set(PREVIOUS_PASSWORD_KEY, previous);
  if (!isSame(current, before) && before.reveal() !== WELL_KNOWN_PASSWORD) {
    // Backups that were signed with the old password stay signed.
    const earlier = passwordIn(object, EARLIER_SIGNING_KEYS) ?? '';
    const key = (await signingKey(before.reveal())).toString('hex');
    const lines = new Set([...earlier.split('\n').filter((line) => line !== ''), key]);
    define(data, EARLIER_SIGNING_KEYS, Buffer.from([...lines].join('\n')).toString('base64'));
  }
  await client.replace(SECRETS, { ...object, data }, { signal });
}

export const isSame = (a: Secret | undefined, b: Secret | undefined): boolean =>
  a !== undefined && b !== undefined && a.reveal() === b.reveal();
