import { describe, expect, it } from 'vitest';
import { signingKey, WriteOnceBucket } from '../../../src/archive/index.ts';
import { Signing, signingOf } from '../../../src/archive/signing/signature.ts';
import { CodedError, type Logger, silentLogger } from '../../../src/base/index.ts';
import type { KubeClient } from '../../../src/kube/index.ts';
import { encryptionProblem } from '../../../src/server/backups/buckets.ts';
import { LocationBuckets } from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const { signal } = new AbortController();

const base64 = (text: string): string => Buffer.from(text).toString('base64');

function secretsOf(all: Record<string, Record<string, string>>) {
  const secrets = new Map<string, { metadata: object; data: Record<string, string> }>();
  let writes = 0;
  const write = (
    _: unknown,
    secret: { metadata: { name: string }; data: Record<string, string> },
  ) => {
    if (cluster.refuses) return Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no right'));
    writes++;
    secrets.set(secret.metadata.name, secret);
    return Promise.resolve();
  };
  const cluster = {
    refuses: false,
    writes: () => writes,
    put: (name: string, data: Record<string, string>): void => {
      const entries = Object.entries(data).map(([key, text]) => [key, base64(text)]);
      const encoded = Object.fromEntries(entries) as Record<string, string>;
      secrets.set(name, { metadata: { namespace: 'velero', name }, data: encoded });
    },
    text: (name: string, key: string): string =>
      Buffer.from(secrets.get(name)?.data[key] ?? '', 'base64').toString(),
    find: (name: string) => Promise.resolve(secrets.get(name)),
    create: write,
    replace: write,
  };
  for (const [name, data] of Object.entries(all)) cluster.put(name, data);
  return cluster;
}

function bucketsOf(
  annotations: Record<string, string> | undefined,
  secrets: ReturnType<typeof secretsOf> = secretsOf({}),
  logger?: Logger,
) {
  const opened: string[] = [];
  const location = {
    apiVersion: 'velero.io/v1',
    kind: 'BackupStorageLocation',
    metadata: { namespace: 'velero', name: 'default', ...(annotations && { annotations }) },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
  };
  const buckets = new LocationBuckets({
    client: {
      create: secrets.create,
      replace: secrets.replace,
      find: ({ kind }: { kind: string }, { name }: { name: string }) =>
        kind === 'Secret' ? secrets.find(name) : Promise.resolve(location),
    } as unknown as KubeClient,
    logger,
    namespace: 'velero',
    directory: tempDirectory('buckets'),
    defaultCredentials: () => undefined,
    openBucket: (place) => {
      opened.push(place);
      return Promise.resolve(new MemoryBucket());
    },
  });
  return { buckets, opened };
}

describe('the bucket of a location', () => {
  it('is one in which no key is put twice where its annotation says so', async () => {
    await using once = await bucketsOf({ 'longshore.io/write-once': 'true' }).buckets.open(
      'default',
      signal,
    );
    expect(once.bucket).toBeInstanceOf(WriteOnceBucket);
    for (const annotations of [undefined, {}, { 'longshore.io/write-once': 'false' }]) {
      await using plain = await bucketsOf(annotations).buckets.open('default', signal);
      expect(plain.bucket).not.toBeInstanceOf(WriteOnceBucket);
    }
  });

  it('is not opened where the annotation says what nobody knows', async () => {
    const { buckets, opened } = bucketsOf({ 'longshore.io/write-once': 'True!' });
    await expect(buckets.open('default', signal)).rejects.toMatchObject({
      code: 'BAD_STORAGE_LOCATION',
    });
    expect(opened).toEqual([]);
  });

  it('cannot be written if it encrypts, and the password is one that everybody knows', async () => {
    const metadata = {
      namespace: 'velero',
      name: 'default',
      annotations: { 'longshore.io/encrypt-archive': 'true' },
    };
    const problemWith = (password: string, location = { metadata }) => {
      const data = { 'repository-password': Buffer.from(password).toString('base64') };
      const client = { find: () => Promise.resolve({ metadata: {}, data }) };
      return encryptionProblem(location as never, { client: client as never, signal });
    };
    expect(await problemWith('static-passw0rd')).toContain('change-password-all');
    expect(await problemWith('a secret')).toBeUndefined();
    const plain = { metadata: { ...metadata, annotations: {} } } as never;
    expect(await problemWith('static-passw0rd', plain)).toBeUndefined();
    const odd = {
      metadata: { ...metadata, annotations: { 'longshore.io/encrypt-archive': 'yes' } },
    };
    await expect(problemWith('a secret', odd)).rejects.toThrow('must be "true" or "false"');
  });

  it('gives files to whom has the key, and encrypts them', async () => {
    const { buckets } = bucketsOf({ 'longshore.io/encrypt-archive': 'true' });
    await using opened = await buckets.open('default', signal);
    await expect(opened.bucket.put('backups/b1/b1.tar.gz', [])).rejects.toMatchObject({
      code: 'CANNOT_ENCRYPT',
    });
    await opened.bucket.put('backups/b1/velero-backup.json', []);
  });

  it('is opened after the keys of its archives are in a Secret of their own', async () => {
    const [own, old] = await Promise.all(['a secret', 'an earlier one'].map(signingKey));
    const [ownKey = '', oldKey = ''] = [own, old].map((key) => key?.toString('hex'));
    const password = {
      'repository-password': 'a secret',
      'longshore-earlier-signing-keys': oldKey,
    };
    const cluster = secretsOf({ 'velero-repo-credentials': password });
    await using opened = await bucketsOf({}, cluster).buckets.open('default', signal);
    expect(opened.bucket).toBeDefined();
    expect(cluster.text('longshore-archive-keys', 'keys')).toBe(`${oldKey}\n${ownKey}\n`);
    // A tool replaces the password. The next backup is signed with the new key.
    cluster.put('velero-repo-credentials', { 'repository-password': 'another' });
    await using again = await bucketsOf({}, cluster).buckets.open('default', signal);
    const signing = signingOf(again.bucket)?.signing;
    for (const key of [own, old]) {
      const { id = '' } = new Signing(key).fileKey ?? {};
      expect(signing?.fileKeyOf(id)).toEqual(key);
    }
    const writes = cluster.writes();
    await using third = await bucketsOf({}, cluster).buckets.open('default', signal);
    expect(third.bucket).toBeDefined();
    expect(cluster.writes()).toBe(writes);
  });

  it('is opened, with one warning, if the keys of its archives cannot be stored', async () => {
    const cluster = secretsOf({ 'velero-repo-credentials': { 'repository-password': 'a secret' } });
    cluster.refuses = true;
    const warned: object[] = [];
    const logger = { ...silentLogger, warn: (fields: object) => warned.push(fields) } as never;
    const { buckets } = bucketsOf({}, cluster, logger);
    for (let times = 0; times < 2; times++) {
      await using opened = await buckets.open('default', signal);
      expect(signingOf(opened.bucket)?.signing?.canSign).toBe(true);
    }
    expect(warned).toEqual([{ secret: 'velero/longshore-archive-keys', error: 'no right' }]);
  });
});
