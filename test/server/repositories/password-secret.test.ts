import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { CodedError, Secret } from '../../../src/base/index.ts';
import { type BlobStorage, openStorage } from '../../../src/blob/index.ts';
import { DEFAULT_ENCRYPTION, DEFAULT_HASH, DEFAULT_SPLITTER } from '../../../src/codec/index.ts';
import type { KubeObject, Resource } from '../../../src/kube/index.ts';
import { createFormat } from '../../../src/repository/index.ts';
import {
  ensurePasswordSecret,
  explainWrongPassword,
  isPasswordWellKnown,
} from '../../../src/server/repositories/password-secret.ts';
import { tempDirectory } from '../../support/kopia.ts';

const NAMESPACE = 'velero';
const WELL_KNOWN = 'static-passw0rd';
const work = tempDirectory('password-secret');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const clock = { nowNs: () => 1_790_000_000_000_000_000n, monotonicNs: () => 0n };

let buckets = 0;
/** A separate location, with a repository for each password. */
async function locationWith(...passwords: string[]): Promise<KubeObject> {
  const name = `location-${++buckets}`;
  const fspath = join(work, name);
  const bucket = fspath;
  fs.mkdirSync(bucket, { recursive: true });
  for (const [at, password] of passwords.entries()) {
    const location = `file://${join(bucket, 'kopia', `app-${at}`)}`;
    await using storage = await openStorage(location, { create: true });
    await createFormat(storage, new Secret(password), {
      hash: DEFAULT_HASH,
      encryption: DEFAULT_ENCRYPTION,
      splitter: DEFAULT_SPLITTER,
      version: 3,
    });
  }
  return {
    metadata: { name, namespace: NAMESPACE },
    spec: {
      provider: 'velero.io/fs',
      config: { fspath },
      objectStorage: { bucket: 'bucket' },
    },
  } as unknown as KubeObject;
}

const used = {
  metadata: { name: 'app-default-kopia', namespace: NAMESPACE },
  status: { phase: 'Ready', lastMaintenanceTime: '2026-05-01T12:00:00Z' },
} as unknown as KubeObject;

interface SecretObject extends KubeObject {
  data: Record<string, string>;
}

/** Objects of one cluster. `secret`: the Secret, created by anyone. */
class Cluster {
  readonly clock = clock;
  readonly objects: Readonly<Record<string, readonly KubeObject[]>>;
  secret: SecretObject | undefined;
  onCreate = (): void => undefined;

  constructor(
    locations: readonly KubeObject[],
    { repositories = [], secret }: { repositories?: KubeObject[]; secret?: string } = {},
  ) {
    this.objects = { backuprepositories: repositories, backupstoragelocations: locations };
    if (secret !== undefined) this.secret = secretWith(secret);
  }

  list = ({ plural }: Resource<KubeObject>): Promise<readonly KubeObject[]> =>
    Promise.resolve(this.objects[plural] ?? []);

  find = (): Promise<KubeObject | undefined> => Promise.resolve(this.secret);

  create = (_: unknown, object: SecretObject): Promise<KubeObject> => {
    this.onCreate();
    if (this.secret) return Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'is there'));
    this.secret = object;
    return Promise.resolve(object);
  };

  get password(): string | undefined {
    const text = this.secret?.data['repository-password'];
    return text === undefined ? undefined : Buffer.from(text, 'base64').toString();
  }

  ensure(
    open: (location: string) => Promise<BlobStorage> = openStorage,
  ): ReturnType<typeof ensurePasswordSecret> {
    return ensurePasswordSecret({
      client: this as never,
      namespace: NAMESPACE,
      directory: join(work, 'credentials'),
      defaultCredentials: () => undefined,
      openStorage: (location) => open(location),
      signal: new AbortController().signal,
    });
  }
}

const secretWith = (password: string): SecretObject => ({
  metadata: {
    name: 'velero-repo-credentials',
    namespace: NAMESPACE,
    uid: 'u',
    resourceVersion: '1',
  } as never,
  data: { 'repository-password': Buffer.from(password).toString('base64') },
});

describe('the Secret with the password of all repositories', () => {
  it('gets a random password in a new installation, another one in each', async () => {
    const passwords = new Set<string | undefined>();
    for (let at = 0; at < 3; at++) {
      const cluster = new Cluster([await locationWith()]);
      expect(await cluster.ensure()).toEqual({ state: 'random' });
      expect(cluster.password).toMatch(/^[\w-]{43}$/);
      expect(cluster.secret?.metadata.labels).toEqual({ 'velero.io/exclude-from-backup': 'true' });
      passwords.add(cluster.password);
    }
    expect(passwords.size).toBe(3);
  });

  it('is created where the directory of a location does not exist yet', async () => {
    const location = await locationWith();
    fs.rmSync(join(work, location.metadata.name), { recursive: true });
    expect(await new Cluster([location]).ensure()).toEqual({ state: 'random' });
  });

  it('is never replaced, whatever it holds', async () => {
    const location = await locationWith('other');
    for (const secret of [WELL_KNOWN, 'mine']) {
      const cluster = new Cluster([location], { secret, repositories: [used] });
      expect(await cluster.ensure()).toEqual({ state: 'there' });
      expect(cluster.password).toBe(secret);
    }
    const empty = new Cluster([location], { secret: '' });
    expect(await empty.ensure()).toEqual({ state: 'there' });
    expect(empty.password).toBe('');
  });

  it('keeps the password of whoever creates it at the same time', async () => {
    const cluster = new Cluster([await locationWith()]);
    cluster.onCreate = () => (cluster.secret ??= secretWith('theirs')) && undefined;
    expect(await cluster.ensure()).toEqual({ state: 'there' });
    expect(cluster.password).toBe('theirs');
  });

  it('is not created before the first location, whose bucket may have repositories', async () => {
    const cluster = new Cluster([]);
    const outcome = await cluster.ensure();
    expect(outcome).toEqual({ state: 'later', why: 'there is no BackupStorageLocation yet' });
    expect(cluster.secret).toBeUndefined();
  });

  it("gets Velero's password where that opens the repositories of the bucket", async () => {
    const cluster = new Cluster([await locationWith(), await locationWith(WELL_KNOWN)]);
    expect(await cluster.ensure()).toEqual({ state: 'well-known' });
    expect(cluster.password).toBe(WELL_KNOWN);
  });

  it("gets Velero's password back when it was lost and its repositories are in use", async () => {
    const cluster = new Cluster([await locationWith(WELL_KNOWN)], { repositories: [used] });
    expect(await cluster.ensure()).toEqual({ state: 'well-known' });
  });

  it.each([
    ['another password', ['other']],
    ['several passwords', [WELL_KNOWN, 'other']],
  ])('is not created where the bucket has repositories with %s', async (_, passwords) => {
    const location = await locationWith(...passwords);
    const cluster = new Cluster([location]);
    await expect(cluster.ensure()).rejects.toMatchObject({
      code: 'NO_PASSWORD',
      message: expect.stringMatching(
        /no Secret velero\/velero-repo-credentials.*unknown password \(app-\d at location location-\d+\).*kubectl -n velero create secret/,
      ) as string,
    });
    expect(cluster.secret).toBeUndefined();
  });

  it('is not created again where repositories are in use and none is left in the bucket', async () => {
    const cluster = new Cluster([await locationWith()], { repositories: [used] });
    await expect(cluster.ensure()).rejects.toThrow(
      /velero-repo-credentials .* is gone, and app-default-kopia is in use/,
    );
    expect(cluster.secret).toBeUndefined();
  });

  it('is created although a BackupRepository waits for it', async () => {
    const waiting = { ...used, status: {} } as unknown as KubeObject;
    const cluster = new Cluster([await locationWith()], { repositories: [waiting] });
    expect(await cluster.ensure()).toEqual({ state: 'random' });
  });

  it('is not created while a bucket cannot be read', async () => {
    const cluster = new Cluster([await locationWith()]);
    const outcome = await cluster.ensure(() =>
      Promise.reject(new CodedError('STORAGE_CREDENTIALS', 'access denied')),
    );
    expect(outcome).toMatchObject({
      state: 'later',
      why: expect.stringMatching(
        /location-\d+ cannot be read.*access denied.*Mend or delete.*create secret/,
      ) as string,
      unreadLocation: expect.stringMatching(/^location-\d+$/) as string,
    });
    expect(cluster.secret).toBeUndefined();
  });

  it('is not created while a repository in the bucket cannot be read', async () => {
    const cluster = new Cluster([await locationWith('other')]);
    const outcome = await cluster.ensure((location) =>
      /kopia\/app-0/.test(location)
        ? Promise.reject(new CodedError('STORAGE_FAILED', 'no answer'))
        : openStorage(location),
    );
    expect(outcome.state).toBe('later');
    expect(cluster.secret).toBeUndefined();
  });

  it('does not wait for the store of a plugin, which holds no repositories', async () => {
    const location = await locationWith();
    Object.assign((location as unknown as { spec: object }).spec, {
      provider: 'example.com/store',
    });
    expect(await new Cluster([location]).ensure()).toEqual({ state: 'random' });
  });

  it('ignores folders that are no repositories', async () => {
    const location = await locationWith();
    const folder = join(work, location.metadata.name, 'kopia');
    fs.mkdirSync(join(folder, 'empty'), { recursive: true });
    fs.mkdirSync(join(folder, 'No_Namespace'));
    expect(await new Cluster([location]).ensure()).toEqual({ state: 'random' });
  });
});

it("knows whether the password is Velero's default, and says nothing without the right to read it", async () => {
  const { signal } = new AbortController();
  const ask = (cluster: object): Promise<boolean | undefined> =>
    isPasswordWellKnown(cluster as never, NAMESPACE, signal);
  expect(await ask(new Cluster([], { secret: WELL_KNOWN }))).toBe(true);
  expect(await ask(new Cluster([], { secret: `${WELL_KNOWN}\n` }))).toBe(true);
  expect(await ask(new Cluster([], { secret: 'mine' }))).toBe(false);
  expect(await ask(new Cluster([]))).toBeUndefined();
  const find = (): Promise<never> => Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no'));
  expect(await ask({ find })).toBeUndefined();
});

it("tells of a repository with Velero's password how to give it the one of the Secret", async () => {
  const wrong = new CodedError('WRONG_PASSWORD', 'the password is wrong');
  const explained = async (password: string): Promise<unknown> => {
    const { metadata } = await locationWith(password);
    const place = `file://${join(work, metadata.name, 'kopia/app-0')}`;
    await using storage = await openStorage(place, {});
    return await explainWrongPassword(wrong, storage, { clock });
  };
  expect(await explained('other')).toBe(wrong);
  const better = await explained(WELL_KNOWN);
  expect(better).toMatchObject({ code: 'WRONG_PASSWORD' });
  expect(String(better)).toMatch(/well-known password.*longshore repository change-password/);
});
