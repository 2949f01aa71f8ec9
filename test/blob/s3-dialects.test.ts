import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HOUR_NS, randomBytes, Secret, systemClock } from '../../src/base/index.ts';
import {
  blobId,
  type BlobStorage,
  checkStorage,
  listAll,
  openBucket,
  openStorage,
  withRetries,
} from '../../src/blob/index.ts';
import { createFormat } from '../../src/repository/index.ts';
import { bucketContract } from '../contract/bucket.ts';
import { storageContract } from '../contract/storage.ts';
import {
  type Quirk,
  QUIRKY_ENVIRONMENT,
  type QuirkyS3,
  type StoredObject,
  startQuirkyS3,
} from '../support/quirky-s3.ts';
import { DEFAULT_FORMAT } from '../support/repositories.ts';
import { startStub } from '../support/stub-store.ts';

/** Services that speak S3 in their own way pass the same contract as the real servers. */
const SERVICES: Record<string, readonly Quirk[]> = {
  'no quirk': [],
  'Backblaze B2': [
    'refuses checksum headers',
    'refuses the checksum mode',
    'answers a condition with 501',
  ],
  'a Ceph bucket of a tenant': ['names another bucket', 'answers a condition with 405'],
  'one without ListObjectsV2': [
    'has no ListObjectsV2',
    'lists two keys a page',
    'has no NextMarker',
    'answers a condition with 400',
  ],
  'one that does not find ListObjectsV2': [
    'does not find ListObjectsV2',
    'checks no digest but MD5',
    'answers a condition with 412',
  ],
  'one that answers as ListObjects': [
    'answers as ListObjects',
    'lists two keys a page',
    'names no bucket and no prefix',
    'answers a condition with 404',
  ],
  'one that lists folders only': [
    'lists folders only',
    'lists backwards',
    'lists two keys a page',
    'answers a condition with 304',
  ],
  'one that lists folders in the older way': ['lists folders only', 'has no ListObjectsV2'],
  'one that needs signed bodies': [
    'refuses unsigned bodies',
    'repeats the last key',
    'lists two keys a page',
    'answers a condition with 409',
  ],
  'one that denies unsigned bodies': [
    'denies unsigned bodies',
    'refuses HEAD',
    'answers a condition with 403',
  ],
  'one that needs signed bodies and MD5': ['refuses unsigned bodies', 'checks no digest but MD5'],
  'one that tells no lengths': ['tells no lengths', 'has plain ETags'],
  'one that escapes keys': [
    'escapes keys',
    'says what it does not delete',
    'answers deletions with 200',
    'fails the end of an upload with 200',
  ],
  Garage: ['needs a region'],
  'one that tells its region in words': ['needs a region and says it in words'],
};
const fast = { firstDelayMs: 1, delayMsMax: 5 };

describe.each(Object.entries(SERVICES))('%s', (name, quirks) => {
  let service: QuirkyS3;
  let next = 0;
  const environment = QUIRKY_ENVIRONMENT;
  beforeAll(async () => {
    service = await startQuirkyS3(quirks, name.includes('tenant') ? 'team:backups' : 'backups');
  });
  afterAll(() => service[Symbol.asyncDispose]());
  const place = (): string => service.location(`a b+c/${next++}`);
  storageContract(name, async () => withRetries(await openStorage(place(), { environment }), fast));
  bucketContract(name, () => openBucket(place(), { environment, retries: fast }));
});

describe('how a service is found out', () => {
  const ID = blobId('p1');
  const environment = QUIRKY_ENVIRONMENT;
  const open = (service: QuirkyS3, parameters: Record<string, string> = {}): Promise<BlobStorage> =>
    openStorage(service.location('p', parameters), { environment });

  it('checksum=none sends no checksum with anything, and locks, which need one, take MD5', async () => {
    await using service = await startQuirkyS3();
    await using storage = await open(service, { checksum: 'none' });
    await storage.putBlob(ID, [Buffer.of(1)]);
    await storage.putBlob(blobId('p2'), [Buffer.of(1)], { doNotRecreate: true });
    await storage.getBlob(ID);
    await storage.getMetadata(ID);
    await listAll(storage, 'p');
    await using bucket = await openBucket(service.location('b', { checksum: 'none' }), {
      environment,
    });
    await bucket.put('long', [Buffer.alloc(9 << 20)]);
    expect(service.requests.length).toBeGreaterThan(8);
    const sent = service.requests.flatMap(({ headers }) => Object.keys(headers));
    expect(sent.filter((name) => /checksum|md5|trailer|chunked|sdk-check/.test(name))).toEqual([]);
    const before = service.requests.length;
    const retention = { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS } as const;
    await storage.putBlob(ID, [Buffer.of(1)], { retention });
    await storage.extendRetention(ID, retention);
    const ofLocks = service.requests
      .slice(before)
      .map(({ headers }) => Object.keys(headers).filter((name) => /checksum|md5/.test(name)));
    expect(ofLocks).toEqual([['content-md5'], ['content-md5']]);
  });

  it('locks are extended with MD5 where a service knows no other checksum', async () => {
    await using service = await startQuirkyS3(['refuses checksum headers']);
    await using storage = await open(service);
    await storage.putBlob(ID, [Buffer.of(1)]);
    await storage.extendRetention(ID, { mode: 'GOVERNANCE', periodNs: 48n * HOUR_NS });
    expect(service.requests.at(-1)?.headers['content-md5']).toBeDefined();
  });

  it('what a service refused once is not sent again, and the others are not asked in another way', async () => {
    await using service = await startQuirkyS3(['refuses checksum headers', 'has no ListObjectsV2']);
    await using storage = await open(service);
    await storage.putBlob(ID, [Buffer.of(1)]);
    await listAll(storage, 'p');
    const before = service.requests.length;
    for (let i = 0; i < 3; i++) await storage.putBlob(ID, [Buffer.of(i)]);
    for (let i = 0; i < 3; i++) await listAll(storage, 'p');
    expect(service.requests.length - before).toBe(6);
    expect(storage.adaptations).toEqual([
      'no CRC-32 checksums: MD5 is sent',
      'no ListObjectsV2: ListObjects is used',
    ]);
    await using plain = await startQuirkyS3();
    await using known = await open(plain);
    await known.putBlob(ID, [Buffer.of(1)]);
    await known.getBlob(ID);
    await listAll(known, 'p');
    expect(plain.requests).toHaveLength(3);
    expect(known.adaptations).toEqual([]);
  });

  it('a checksum that was asked for by name is not replaced, and the error names the setting', async () => {
    await using service = await startQuirkyS3(['refuses checksum headers']);
    await using storage = await open(service, { checksum: 'sha256' });
    await expect(storage.putBlob(ID, [Buffer.of(1)])).rejects.toMatchObject({
      code: 'UNSUPPORTED_CHECKSUM',
      message: expect.stringContaining('set checksum to auto, md5 or none') as string,
    });
    expect(service.objects.size).toBe(0);
  });

  const REFUSALS = ['400', '403', '404', '405', '409', '412', '501'] as const;
  it.each(REFUSALS)(
    'a repository is created where a condition is answered with %s',
    async (status) => {
      await using service = await startQuirkyS3([`answers a condition with ${status}`]);
      await using storage = withRetries(await open(service), fast);
      const create = (): Promise<void> =>
        createFormat(storage, new Secret('pw'), DEFAULT_FORMAT, undefined, () => Promise.resolve());
      await create();
      const made = service.objects.get('p/kopia.repository');
      await expect(create()).rejects.toMatchObject({ code: 'REPOSITORY_EXISTS' });
      expect(service.objects.get('p/kopia.repository')).toBe(made);
      await using once = withRetries(
        await openStorage(service.location('once', { writeOnce: 'true' }), { environment }),
        fast,
      );
      await once.putBlob(ID, [Buffer.of(1)]);
      await expect(once.putBlob(ID, [Buffer.of(2)])).rejects.toMatchObject({ code: 'BLOB_EXISTS' });
    },
  );

  it('the marker of a folder is no blob, also where it is listed for every prefix', async () => {
    await using service = await startQuirkyS3(['lists the folder itself']);
    await using storage = await open(service);
    await storage.putBlob(ID, [Buffer.of(1)]);
    for (const prefix of ['', 'p', 'x']) {
      const listed = await listAll(storage, prefix);
      expect(listed.map(({ id }) => id)).toEqual(prefix === 'x' ? [] : [ID]);
    }
  });

  it('a put that is denied is denied, with a condition or without', async () => {
    await using service = await startQuirkyS3(['denies puts']);
    await using bucket = await openBucket(service.location('p'), { environment, retries: fast });
    await expect(bucket.put('a', [Buffer.of(1)], { ifAbsent: true })).rejects.toMatchObject({
      code: 'STORAGE_DENIED',
    });
  });

  it.each<[Quirk[], RegExp]>([
    [[], /a blob that exists is not put again/],
    [['ignores conditions'], /ignores the condition.*create repositories there from one place/],
    [['answers a condition with 501'], /does not support it: create repositories there from one/],
  ])('store check tries a put if absent: %j', async (quirks, words) => {
    await using service = await startQuirkyS3(quirks);
    await using storage = await open(service);
    const options = { kind: 's3', clock: systemClock, random: randomBytes } as const;
    const results = await Array.fromAsync(checkStorage(storage, options));
    expect(results.filter(({ ok }) => !ok)).toEqual([]);
    expect(results.find(({ name }) => name === 'put if absent')?.detail).toMatch(words);
    expect(service.objects.size).toBe(0);
  });

  it.each([
    ['InvalidRegion', 'Region does not match.'],
    ['AuthorizationHeaderMalformed', 'The authorization header is malformed'],
    ['PermanentRedirect', 'The bucket must be addressed using the specified endpoint'],
    ['SignatureDoesNotMatch', 'Signature validation failed'],
  ])('a region that nobody tells is named as the setting to look at: %s', async (code, text) => {
    await using stub = await startStub('s3', () => ({
      status: code === 'SignatureDoesNotMatch' ? 403 : 400,
      body: `<Error><Code>${code}</Code><Message>${text}</Message></Error>`,
    }));
    await expect(listAll(stub.storage, 'p')).rejects.toMatchObject({
      retry: 'never',
      message: expect.stringMatching(/region/) as string,
    });
    expect(stub.requests.length).toBeLessThan(4);
  });
});

describe('.storageconfig', () => {
  const environment = QUIRKY_ENVIRONMENT;
  const config = (text: string): StoredObject => ({
    data: Buffer.from(text),
    modified: new Date(),
    etag: '"1"',
  });
  /** The class that each put carried, after the puts of these blobs. */
  async function classesOf(
    text: string | undefined,
    parameters: Record<string, string> = {},
  ): Promise<Record<string, unknown>> {
    await using service = await startQuirkyS3();
    if (text !== undefined) service.objects.set('p/.storageconfig', config(text));
    const location = service.location('p', parameters);
    await using storage = await openStorage(location, { environment, isRepository: true });
    for (const id of ['p1', 'q1', 'xn0_1']) await storage.putBlob(blobId(id), [Buffer.of(1)]);
    expect((await listAll(storage, '')).map(({ id }) => id)).toEqual(['p1', 'q1', 'xn0_1']);
    const puts = service.requests.filter(({ method }) => method === 'PUT');
    const gets = service.requests.filter(({ url }) => url.includes('.storageconfig'));
    expect(gets.length).toBe(parameters.storageClass === undefined ? 1 : 0);
    return Object.fromEntries(
      puts.map(({ url, headers }) => [
        url.split('?')[0]?.split('/').at(-1) ?? '',
        headers['x-amz-storage-class'],
      ]),
    );
  }

  it('gives each blob the class of the first prefix that fits, as Kopia does', async () => {
    const text = JSON.stringify({
      blobOptions: [
        { prefix: 'p', storageClass: 'STANDARD_IA' },
        { prefix: 'q', storageClass: '' },
        { storageClass: 'ONEZONE_IA' },
      ],
      futureOptions: true,
    });
    expect(await classesOf(text)).toEqual({
      p1: 'STANDARD_IA',
      q1: undefined,
      xn0_1: 'ONEZONE_IA',
    });
    expect(await classesOf('{}')).toEqual({ p1: undefined, q1: undefined, xn0_1: undefined });
    expect(await classesOf(undefined)).toEqual({ p1: undefined, q1: undefined, xn0_1: undefined });
  });

  it('counts for nothing where the location names a class', async () => {
    const text = '{"blobOptions":[{"prefix":"p","storageClass":"STANDARD_IA"}]}';
    const named = await classesOf(text, { storageClass: 'INTELLIGENT_TIERING' });
    expect(named).toEqual({
      p1: 'INTELLIGENT_TIERING',
      q1: 'INTELLIGENT_TIERING',
      xn0_1: 'INTELLIGENT_TIERING',
    });
  });

  it.each(['', '{"blobOptions":', '[1]', '{"blobOptions":[{"prefix":1}]}'])(
    'ends a put where it cannot be read, before the wrong class is paid for: %s',
    async (text) => {
      await expect(classesOf(text)).rejects.toMatchObject({
        code: 'BAD_STORAGE_CONFIG',
        message: expect.stringContaining('correct it or delete it') as string,
      });
    },
  );

  it('is not there where it is denied, as Amazon denies a missing object without s3:ListBucket', async () => {
    await using service = await startQuirkyS3(['denies what is missing']);
    const options = { environment, isRepository: true };
    await using storage = await openStorage(service.location('p'), options);
    await storage.putBlob(blobId('p1'), [Buffer.of(1)]);
    expect(service.objects.has('p/p1')).toBe(true);
  });

  it('is none of the buckets of backups, which Kopia does not write to', async () => {
    await using service = await startQuirkyS3();
    service.objects.set('p/.storageconfig', config('{"blobOptions":[{"storageClass":"GLACIER"}]}'));
    await using bucket = await openBucket(service.location('p'), { environment });
    await bucket.put('backups/b1/x', [Buffer.of(1)]);
    expect(service.requests.at(-1)?.headers['x-amz-storage-class']).toBeUndefined();
  });
});
