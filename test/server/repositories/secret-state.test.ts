import { expect, it } from 'vitest';
import { signingKey } from '../../../src/archive/index.ts';
import { CodedError, Secret } from '../../../src/base/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  PASSWORD_SECRET,
} from '../../../src/kube/index.ts';
import { EARLIER_SIGNING_KEYS, repositoryPasswords } from '../../../src/repository-access/index.ts';
import {
  loadPasswordState,
  writePasswordState,
} from '../../../src/server/repositories/password-change/secret-state.ts';

const { signal } = new AbortController();
const encoded = (text: string): string => Buffer.from(text).toString('base64');

interface StoredSecret extends KubeObject {
  readonly data: Readonly<Record<string, string>>;
}

/** The Secrets of a cluster. `refused`: the Secret that this account may not write. */
class Cluster {
  readonly secrets = new Map<string, StoredSecret>();
  /** Called after each write. */
  onWrite: () => Promise<void> = () => Promise.resolve();
  refused: string | undefined;

  constructor(data: Record<string, string>) {
    const entries = Object.entries(data).map(([key, text]) => [key, encoded(text)]);
    this.#put({
      metadata: { name: PASSWORD_SECRET, namespace: 'velero' },
      data: Object.fromEntries(entries) as Record<string, string>,
    } as StoredSecret);
  }

  get client(): KubeClient {
    const write = async (_: unknown, secret: StoredSecret): Promise<void> => {
      if (secret.metadata.name === this.refused) throw new CodedError('KUBE_FORBIDDEN', 'no right');
      this.#put(secret);
      await this.onWrite();
    };
    const find = (_: unknown, { name }: ObjectRef): Promise<StoredSecret | undefined> =>
      Promise.resolve(this.secrets.get(name));
    return { find, create: write, replace: write } as unknown as KubeClient;
  }

  #put(secret: StoredSecret): void {
    this.secrets.set(secret.metadata.name, structuredClone(secret));
  }

  /** Like a GitOps tool. */
  applyPassword(password: string): void {
    const { metadata } = this.secrets.get(PASSWORD_SECRET) as StoredSecret;
    this.#put({ metadata, data: { 'repository-password': encoded(password) } });
  }

  async changeTo(password: string): Promise<void> {
    const state = await loadPasswordState(this.client, 'velero', signal);
    const next = { current: new Secret(password), next: undefined, previous: state.current };
    await writePasswordState(this.client, state, next, signal);
  }

  async earlierKeys(): Promise<string[]> {
    const found = await repositoryPasswords({ client: this.client, namespace: 'velero', signal });
    return found?.earlierKeys ?? [];
  }
}

const keysOf = async (...passwords: string[]): Promise<string[]> =>
  (await Promise.all(passwords.map(signingKey))).map((key) => key.toString('hex'));

it('keys of all passwords outlive a Secret of the password that is applied again', async () => {
  const cluster = new Cluster({ 'repository-password': 'first' });
  for (const password of ['second', 'third', 'third']) await cluster.changeTo(password);
  const keys = await keysOf('first', 'second', 'third');
  expect(await cluster.earlierKeys()).toEqual(keys);
  cluster.applyPassword('third');
  expect(await cluster.earlierKeys()).toEqual(keys);
  expect(cluster.secrets.get(ARCHIVE_KEYS_SECRET)?.metadata.labels).toEqual({
    'longshore.io/archive-keys': 'true',
    'velero.io/exclude-from-backup': 'true',
  });
});

it('the key of the password that everybody knows is not kept', async () => {
  const cluster = new Cluster({ 'repository-password': 'static-passw0rd' });
  await cluster.changeTo('second');
  expect([...cluster.secrets.keys()]).toEqual([PASSWORD_SECRET]);
  expect(await cluster.earlierKeys()).toEqual([]);
});

it('keys beside the password are moved, and no kill between two writes loses one', async () => {
  const [old = '', own = ''] = await keysOf('of an earlier version', 'first');
  const cluster = new Cluster({ 'repository-password': 'first', [EARLIER_SIGNING_KEYS]: old });
  let writes = 0;
  cluster.onWrite = async () => {
    writes++;
    expect(await cluster.earlierKeys()).toEqual([old, own]);
  };
  await cluster.changeTo('second');
  expect(writes).toBe(2);
  expect(cluster.secrets.get(PASSWORD_SECRET)?.data).not.toHaveProperty(EARLIER_SIGNING_KEYS);
});

it('keys stay beside the password if the account may not write the Secret of the keys', async () => {
  const [old = '', own = ''] = await keysOf('of an earlier version', 'first');
  const cluster = new Cluster({ 'repository-password': 'first', [EARLIER_SIGNING_KEYS]: old });
  cluster.refused = ARCHIVE_KEYS_SECRET;
  await cluster.changeTo('second');
  expect([...cluster.secrets.keys()]).toEqual([PASSWORD_SECRET]);
  expect(await cluster.earlierKeys()).toEqual([old, own]);
});
