import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { Secret } from '../../src/base/index.ts';
import { blobId, openStorage, parseLocation } from '../../src/blob/index.ts';
import {
  bucketLocation,
  isWriteOnce,
  parseBackupStorageLocation,
  repositoryLocation,
  retentionOf,
} from '../../src/config/index.ts';
import { openRepository } from '../../src/repository/index.ts';
import { listSnapshots, verifyTrees } from '../../src/snapshot/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { BUCKET, hasStore, startStore } from '../support/object-stores.ts';

const work = tempDirectory('bsl');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

const bsl = (spec: object) =>
  parseBackupStorageLocation({
    apiVersion: 'velero.io/v1',
    kind: 'BackupStorageLocation',
    metadata: { name: 'default', namespace: 'velero' },
    spec,
  });
const objectStorage = { bucket: 'b', prefix: '/backups/' };

describe("the bucket of Velero's BackupStorageLocation", () => {
  it.each([
    [{ provider: 'aws', objectStorage }, 's3://b/backups/?pathStyle=false'],
    [{ provider: 'aws', objectStorage: { bucket: '/b/' } }, 's3://b/?pathStyle=false'],
    [
      {
        provider: 'aws',
        objectStorage,
        config: {
          s3Url: 'http://minio:9000',
          s3ForcePathStyle: 'true',
          publicUrl: 'https://m.example',
        },
      },
      's3://b/backups/?endpoint=http%3A%2F%2Fminio%3A9000&publicEndpoint=https%3A%2F%2Fm.example&pathStyle=true',
    ],
    [
      { provider: 'aws', objectStorage, config: { kmsKeyId: 'k', publicUrl: '' } },
      's3://b/backups/?pathStyle=false&sse=aws%3Akms&kmsKeyId=k',
    ],
    [
      { provider: 'azure', objectStorage, config: { storageAccount: 'acc' } },
      'azblob://b/backups/?account=acc',
    ],
    // As velero-plugin-for-aws: the key decides.
    [
      {
        provider: 'aws',
        objectStorage,
        config: { kmsKeyId: 'k', serverSideEncryption: 'AES256' },
      },
      's3://b/backups/?pathStyle=false&sse=aws%3Akms&kmsKeyId=k',
    ],
    [{ provider: 'gcp', objectStorage }, 'gs://b/backups/'],
    [{ provider: 'velero.io/fs', config: { fspath: '/backup/' } }, 'file:///backup/'],
  ])('%j is %s', (spec, expected) => {
    expect(bucketLocation(bsl(spec))).toBe(expected);
  });
  it.each([
    [{ provider: 'aws' }, 'backup storage location does not use object storage'],
    [{ provider: '', objectStorage }, 'object storage provider name must not be empty'],
    [
      { provider: 'aws', objectStorage: { bucket: 'b/c' } },
      `backup storage location's bucket name "b/c" must not contain a '/' (if using a prefix, put it in the 'Prefix' field instead)`,
    ],
    [
      {
        provider: 'aws',
        objectStorage: { bucket: 'b', caCert: 'eA==', caCertRef: { name: 'n', key: 'k' } },
      },
      'cannot specify both caCert and caCertRef in objectStorage',
    ],
    [{ provider: 'aws', objectStorage: {} }, 'default names no bucket'],
    [
      { provider: 'aws', objectStorage, config: { publicUrl: 'http://[' } },
      'publicUrl "http://[" is not a URL',
    ],
  ])('%j is none', (spec, message) => {
    expect(() => bucketLocation(bsl(spec))).toThrow(message);
  });
});

it.each(['team#1', 'team?region=other', 'a b', '100%', 'ü/x', 'a&b=c+d'])(
  'a prefix %j is the prefix of all that is opened',
  (prefix) => {
    const config = { region: 'minio', s3Url: 'http://minio:9000' };
    const location = bsl({ provider: 'aws', objectStorage: { bucket: 'b', prefix }, config });
    const place = { region: 'minio', endpoint: 'http://minio:9000', bucket: 'b' };
    const bucket = parseLocation(bucketLocation(location));
    expect(bucket).toMatchObject({ ...place, prefix: `${prefix}/` });
    const repository = parseLocation(repositoryLocation(location, 'app'));
    expect(repository).toMatchObject({ ...place, prefix: `${prefix}/kopia/app/` });
    const directory = bsl({ provider: 'velero.io/fs', config: { fspath: '/data/x', prefix } });
    expect(parseLocation(bucketLocation(directory))).toMatchObject({ path: `/data/x/${prefix}/` });
  },
);

const withPrefix = (prefix: string) =>
  bsl({ provider: 'aws', objectStorage: { bucket: 'b', prefix } });

it.each(['a/../b', '..', './a'])(
  'a prefix %j, which a URL would leave out, is refused',
  (prefix) => {
    expect(() => bucketLocation(withPrefix(prefix))).toThrow('must not have a part "." or ".."');
  },
);

describe('the annotations for buckets with object lock', () => {
  const annotated = (
    annotations: Record<string, string>,
    spec: object = { provider: 'aws', objectStorage },
  ) =>
    parseBackupStorageLocation({
      apiVersion: 'velero.io/v1',
      kind: 'BackupStorageLocation',
      metadata: { name: 'default', namespace: 'velero', annotations },
      spec,
    });

  it('say whether keys are put once, in repositories as well', () => {
    expect(isWriteOnce(bsl({ provider: 'aws', objectStorage }))).toBe(false);
    expect(isWriteOnce(annotated({ 'longshore.io/write-once': 'false' }))).toBe(false);
    const once = annotated({ 'longshore.io/write-once': 'true' });
    expect(isWriteOnce(once)).toBe(true);
    const location = repositoryLocation(once, 'app');
    expect(location).toBe('s3://b/backups/kopia/app/?writeOnce=true');
    expect(parseLocation(location)).toMatchObject({ writeOnce: true });
    expect(bucketLocation(once)).not.toContain('writeOnce');
    for (const [provider, kind] of [
      ['azure', 'azblob'],
      ['gcp', 'gs'],
    ]) {
      const other = annotated({ 'longshore.io/write-once': 'true' }, { provider, objectStorage });
      expect(repositoryLocation(other, 'app')).toBe(
        `${kind}://b/backups/kopia/app/?writeOnce=true`,
      );
    }
    const directory = { provider: 'velero.io/fs', config: { fspath: '/data' } };
    const local = annotated({ 'longshore.io/write-once': 'true' }, directory);
    expect(repositoryLocation(local, 'app')).toBe('file:///data/kopia/app/');
  });

  it('say for how long files are locked', () => {
    expect(retentionOf(bsl({ provider: 'aws', objectStorage }))).toBeUndefined();
    const hours = (count: number): bigint => BigInt(count) * 3_600_000_000_000n;
    for (const [text, mode, expected] of [
      ['720h', undefined, { mode: 'GOVERNANCE', periodNs: hours(720) }],
      ['30d', 'compliance', { mode: 'COMPLIANCE', periodNs: hours(720) }],
      ['48h59m', 'GOVERNANCE', { mode: 'GOVERNANCE', periodNs: hours(48) }],
    ] as const) {
      const annotations = {
        'longshore.io/retention': text,
        ...(mode !== undefined && { 'longshore.io/retention-mode': mode }),
      };
      expect(retentionOf(annotated(annotations))).toEqual(expected);
    }
  });

  it.each([
    [
      { 'longshore.io/write-once': 'yes' },
      'annotation longshore.io/write-once of default must be "true" or "false", not "yes"',
    ],
    [
      { 'longshore.io/retention': '47h' },
      'annotation longshore.io/retention of default must be a duration from 48h to 876000h, such as 720h, not "47h"',
    ],
    [{ 'longshore.io/retention': 'soon' }, 'must be a duration'],
    [{ 'longshore.io/retention': '999999h' }, 'must be a duration'],
    [
      { 'longshore.io/retention-mode': 'legal' },
      'annotation longshore.io/retention-mode of default must be one of GOVERNANCE, COMPLIANCE, not "legal"',
    ],
  ])('are refused where they say something else: %o', (annotations, text) => {
    const read = (): unknown => {
      const found = annotated(annotations);
      return [isWriteOnce(found), retentionOf(found)];
    };
    expect(read).toThrow(expect.objectContaining({ code: 'BAD_STORAGE_LOCATION' }));
    expect(read).toThrow(text);
  });
});

it('a prefix is tidied for a repository alone, as in Velero', () => {
  for (const prefix of ['a//b', 'x/../a/b', './a/b']) {
    const { pathname } = new URL(repositoryLocation(withPrefix(prefix), 'app'));
    expect(pathname).toBe('/a/b/kopia/app/');
  }
  expect(() => repositoryLocation(withPrefix('../a'), 'app')).toThrow('"." or ".."');
  expect(new URL(bucketLocation(withPrefix('a//b'))).pathname).toBe('/a//b/');
});

describe("the repository of Velero's BackupStorageLocation", () => {
  it.each([
    [{ provider: 'aws', objectStorage }, 's3://b/backups/kopia/app/'],
    [{ provider: 'velero.io/aws', objectStorage: { bucket: 'b' } }, 's3://b/kopia/app/'],
    [
      {
        provider: 'aws',
        objectStorage,
        config: { region: '/eu-west-1/', s3Url: 'http://minio:9000', s3ForcePathStyle: 'true' },
      },
      's3://b/backups/kopia/app/?region=eu-west-1&endpoint=http%3A%2F%2Fminio%3A9000',
    ],
    [
      {
        provider: 'aws',
        objectStorage,
        config: { s3Url: 'minio:9000', insecureSkipTLSVerify: 'T', profile: 'p' },
      },
      's3://b/backups/kopia/app/?endpoint=https%3A%2F%2Fminio%3A9000&profile=p&insecureTls=true',
    ],
    [
      { provider: 'aws', objectStorage, config: { insecureSkipTLSVerify: 'yes' } },
      's3://b/backups/kopia/app/',
    ],
    [
      { provider: 'acme.io/s3-like', objectStorage, config: { s3Url: 'https://acme/' } },
      's3://b/backups/kopia/app/?endpoint=https%3A%2F%2Facme',
    ],
    [
      {
        provider: 'azure',
        objectStorage,
        config: {
          storageAccount: 'acc',
          storageAccountKeyEnvVar: 'KEY',
          resourceGroup: 'rg',
          subscriptionId: 'sub',
          useAAD: 'true',
        },
      },
      'azblob://b/backups/kopia/app/?account=acc&keyVariable=KEY&useAad=true&subscriptionId=sub&resourceGroup=rg',
    ],
    [{ provider: 'gcp', objectStorage }, 'gs://b/backups/kopia/app/'],
    [
      { provider: 'velero.io/fs', config: { fspath: '/mnt/store/', bucket: 'x', prefix: 'pre' } },
      'file:///mnt/store/pre/kopia/app/',
    ],
    [{ provider: 'aws', config: { bucket: 'c', prefix: 'd' } }, 's3://c/d/kopia/app/'],
  ])('%j', (spec, location) => {
    expect(repositoryLocation(bsl(spec), 'app')).toBe(location);
  });

  it('credentials and authorities come as files', () => {
    const files = { credentialsFile: '/run/cloud', caFile: '/run/ca.pem' };
    expect(repositoryLocation(bsl({ provider: 'aws', objectStorage }), 'app', files)).toBe(
      's3://b/backups/kopia/app/?credentialsFile=%2Frun%2Fcloud&caFile=%2Frun%2Fca.pem',
    );
  });

  it.each([
    [{ provider: 'acme' }, /invalid storage provider "acme"/],
    [{ provider: 'aws', objectStorage: { bucket: '' } }, /names no bucket/],
    [
      { provider: 'aws', objectStorage, config: { s3Url: 'https://x/path' } },
      /s3Url must not have a path:/,
    ],
    [{ provider: 'velero.io/fs', config: { fspath: 'rel' } }, /not absolute/],
  ])('%j is refused', (spec, message) => {
    expect(() => repositoryLocation(bsl(spec), 'app')).toThrow(message);
  });

  it('what is no BackupStorageLocation, and a namespace that cannot be one, are refused', () => {
    expect(() => parseBackupStorageLocation({ kind: 'Pod' })).toThrow(
      /not a BackupStorageLocation/,
    );
    expect(() => repositoryLocation(bsl({ provider: 'aws', objectStorage }), '../x')).toThrow(
      /not the name of a namespace/,
    );
  });

  it.skipIf(!hasStore('minio'))(
    'a repository that the real Velero wrote to a bucket is found and read',
    async () => {
      await using store = await startStore('minio');
      const { environment } = store;
      const raw = new URL('../golden/velero/kopia-repo-tiny/', import.meta.url).pathname;
      {
        await using bucket = await openStorage(store.location('cluster/kopia/tiny'), {
          environment,
        });
        for (const name of fs.readdirSync(raw)) {
          await bucket.putBlob(blobId(name), [fs.readFileSync(join(raw, name))]);
        }
      }
      const location = repositoryLocation(
        bsl({
          provider: 'aws',
          objectStorage: { bucket: BUCKET, prefix: 'cluster' },
          config: { region: 'us-east-1', s3ForcePathStyle: 'true', s3Url: store.endpoint },
        }),
        'tiny',
      );
      await using storage = await openStorage(location, { environment });
      await using repository = await openRepository({
        storage,
        password: new Secret('static-passw0rd'),
        client: { username: 'default', hostname: 'default' },
      });
      const snapshots = await listSnapshots(repository);
      expect(snapshots.map(({ id }) => String(id)).sort()).toEqual([
        '287263d544dd56909e8c550e0645d5e7',
        '2a12198926b9f95da8f1df6565b3e4ea',
      ]);
      expect(snapshots[0]?.tags).toMatchObject({
        'snapshot-requester': 'snapshot-data-upload-download',
      });
      const roots = snapshots.flatMap(({ rootEntry }) => rootEntry ?? []);
      const { signal } = new AbortController();
      const { problems, objects } = await verifyTrees(repository, roots, { readAll: true, signal });
      expect(problems).toEqual([]);
      expect(objects).toBeGreaterThan(10);
    },
  );
});
