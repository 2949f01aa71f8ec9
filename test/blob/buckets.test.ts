import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RemoteBucket } from '../../src/blob/http/remote-bucket.ts';
import type { RemoteStorage } from '../../src/blob/http/remote-storage.ts';
import { blobId, type Bucket, openBucket } from '../../src/blob/index.ts';
import { bucketContract } from '../contract/bucket.ts';
import { startFaultProxy } from '../support/fault-proxy.ts';
import { canMount, mountSmallDisk } from '../support/full-disk.ts';
import { tempDirectory } from '../support/kopia.ts';
import { MemoryStorage } from '../support/memory-storage.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import {
  BUCKET,
  hasStore,
  type ObjectStore,
  startStore,
  STORE_KINDS,
} from '../support/object-stores.ts';

const openDirectory = (): Promise<Bucket> => openBucket(tempDirectory('bucket'));
bucketContract('directory', openDirectory);
bucketContract('memory', () => Promise.resolve(new MemoryBucket()));

describe.each(STORE_KINDS)('%s', (kind) => {
  describe.skipIf(!hasStore(kind))('real', () => {
    let store: ObjectStore;
    let next = 0;
    beforeAll(async () => {
      store = await startStore(kind);
    });
    afterAll(() => store[Symbol.asyncDispose]());
    bucketContract(kind, async () => {
      const { environment } = store;
      return openBucket(store.location(`contract-${next++}`), { environment });
    });
  });
});

describe('a directory as a bucket', () => {
  it('has no key that leads out of it', async () => {
    await using bucket = await openDirectory();
    for (const key of ['../x', 'a/../../x', '/x', 'a//b', '.', 'a/.', '', 'a\0b']) {
      await expect(bucket.put(key, [Buffer.of(1)]), key).rejects.toMatchObject({ code: 'BAD_KEY' });
      await expect(bucket.has(key), key).rejects.toMatchObject({ code: 'BAD_KEY' });
    }
  });

  it('does not take a directory that went away for an empty bucket', async () => {
    const path = tempDirectory('bucket');
    await using bucket = await openBucket(path);
    await bucket.put('backups/b1/x', [Buffer.of(1)]);
    fs.rmSync(path, { recursive: true });
    await expect(Array.fromAsync(bucket.list('backups/'))).rejects.toThrow();
    await expect(Array.fromAsync(bucket.listFolders('backups/'))).rejects.toThrow();
    await expect(bucket.put('backups/b2/x', [Buffer.of(1)])).rejects.toThrow();
    expect(fs.existsSync(path)).toBe(false);
    await expect(openBucket(path)).rejects.toMatchObject({ code: 'STORAGE_NOT_FOUND' });
  });

  it('lists nothing of what a killed put left', async () => {
    const path = tempDirectory('bucket');
    await using bucket = await openBucket(path);
    await bucket.put('backups/b1/x', [Buffer.of(1)]);
    fs.writeFileSync(join(path, 'backups/b1/y.tmp.0123456789abcdef'), 'half');
    expect(await Array.fromAsync(bucket.list('backups/'))).toEqual(['backups/b1/x']);
  });

  it('gives the room back of what killed puts left, and leaves those that run alone', async () => {
    const path = tempDirectory('bucket');
    const left = join(path, 'backups/b1/b1.tar.gz.tmp.0123456789abcdef');
    const runs = join(path, 'backups/b1/b1.tar.gz.tmp.fedcba9876543210');
    const hoursAgo = Date.now() / 1000 - 2 * 3600;
    await using bucket = await openBucket(path);
    for (const step of ['delete', 'put'] as const) {
      await bucket.put('backups/b1/x', [Buffer.of(1)]);
      for (const file of [left, runs]) fs.writeFileSync(file, 'half');
      fs.utimesSync(left, hoursAgo, hoursAgo);
      await (step === 'put' ? bucket.put('backups/b1/y', []) : bucket.delete('backups/b1/x'));
      expect(fs.existsSync(left), step).toBe(false);
      expect(fs.existsSync(runs), step).toBe(true);
    }
    fs.rmSync(runs);
    // As a deletion that was begun before, and whose files are all gone.
    await bucket.delete('backups/b1/x');
    await bucket.delete('backups/b1/y');
    fs.mkdirSync(join(path, 'backups/b1'), { recursive: true });
    fs.writeFileSync(left, 'half');
    fs.utimesSync(left, hoursAgo, hoursAgo);
    await bucket.delete('backups/b1/velero-backup.json');
    expect(fs.readdirSync(path)).toEqual([]);
  });

  it.skipIf(!canMount)('says that the disk is full, and keeps what was there', async () => {
    using disk = mountSmallDisk(1 << 20);
    await using bucket = await openBucket(disk.path);
    await bucket.put('backups/b1/x', [Buffer.from('before')]);
    const long = Array.from({ length: 20 }, () => Buffer.alloc(100_000, 1));
    await expect(bucket.put('backups/b1/x', long)).rejects.toMatchObject({ code: 'STORAGE_FULL' });
    expect(Buffer.concat(await Array.fromAsync(bucket.get('backups/b1/x'))).toString()).toBe(
      'before',
    );
    expect(fs.readdirSync(join(disk.path, 'backups/b1'))).toEqual(['x']);
  });
});

it('an object that is replaced while it is read is the old one or the new one', async () => {
  const storage = new MemoryStorage();
  const bucket = new RemoteBucket(storage as unknown as RemoteStorage);
  const id = blobId('x');
  const metadata = storage.getMetadata.bind(storage);
  for (const [before, after] of [
    ['{"old":1}', '{"new":"and longer"}'],
    ['{"old":"and longer"}', '{"new":1}'],
  ] as const) {
    await storage.putBlob(id, [Buffer.from(before)]);
    storage.getMetadata = async (...given) => {
      const found = await metadata(...given);
      await storage.putBlob(id, [Buffer.from(after)]);
      return found;
    };
    const got = Buffer.concat(await Array.fromAsync(bucket.get('x'))).toString();
    expect([before, after]).toContain(got);
    storage.getMetadata = metadata;
  }
});

describe.skipIf(!hasStore('minio'))('a bucket of S3', () => {
  let store: ObjectStore;
  beforeAll(async () => {
    store = await startStore('minio');
  });
  afterAll(() => store[Symbol.asyncDispose]());

  it('signs URLs with the endpoint that others use', async () => {
    const { environment } = store;
    const location = store.location('signed', { publicEndpoint: 'https://s3.example.com' });
    await using bucket = await openBucket(location, { environment });
    const url = new URL(await bucket.signedUrl('backups/b1/x', 600_000));
    expect(url.origin).toBe('https://s3.example.com');
    expect(url.pathname).toBe(`/${BUCKET}/signed/backups/b1/x`);
    expect(url.searchParams.get('X-Amz-Expires')).toBe('600');
    // Headers that a plain GET does not have would make it fail.
    expect(url.searchParams.get('X-Amz-SignedHeaders')).toBe('host');
  });

  it('signs none where each request must carry a key', async () => {
    const { environment } = store;
    const file = join(tempDirectory('key'), 'key');
    fs.writeFileSync(file, Buffer.alloc(32, 7));
    const location = store.location('sse', { sseCustomerKeyFile: file });
    await using bucket = await openBucket(location, { environment });
    await expect(bucket.signedUrl('x', 1000)).rejects.toMatchObject({ code: 'UNSUPPORTED_URL' });
  });
});

describe.skipIf(!hasStore('minio'))('a long object in parts', () => {
  let store: ObjectStore;
  beforeAll(async () => {
    store = await startStore('minio');
  });
  afterAll(() => store[Symbol.asyncDispose]());
  const body = (): Uint8Array[] => Array.from({ length: 20 }, (_, i) => Buffer.alloc(1 << 20, i));

  it.each(['refused', 'lost-answer', 'internal-error', 'slow-down'] as const)(
    'is put whole where requests fail: %s',
    async (fault) => {
      let requests = 0;
      await using proxy = await startFaultProxy(store.endpoint, (kind) =>
        kind === 'put' && requests++ % 2 === 0 ? fault : undefined,
      );
      const location = store.location(`parts-${fault}`, { endpoint: proxy.endpoint });
      const { environment } = store;
      const retries = { firstDelayMs: 1, delayMsMax: 5 };
      await using bucket = await openBucket(location, { environment, retries });
      await bucket.put('backups/b1/b1.tar.gz', body());
      const got = Buffer.concat(await Array.fromAsync(bucket.get('backups/b1/b1.tar.gz')));
      expect(got.equals(Buffer.concat(body()))).toBe(true);
      expect(proxy.counts.get(`put ${fault}`)).toBeGreaterThan(1);
    },
    60_000,
  );

  it('is there when only the answer to its end was lost', async () => {
    let ends = 0;
    await using proxy = await startFaultProxy(store.endpoint, (_, path) => {
      const isEnd = path.includes('uploadId=') && !path.includes('partNumber=');
      return isEnd && ends++ === 0 ? 'lost-answer' : undefined;
    });
    const location = store.location('parts-end', { endpoint: proxy.endpoint });
    const { environment } = store;
    await using bucket = await openBucket(location, { environment });
    await bucket.put('backups/b1/b1.tar.gz', body());
    expect(ends).toBe(2);
    const got = Buffer.concat(await Array.fromAsync(bucket.get('backups/b1/b1.tar.gz')));
    expect(got.equals(Buffer.concat(body()))).toBe(true);
  }, 60_000);

  it('leaves nothing when a part fails for good', async () => {
    await using proxy = await startFaultProxy(store.endpoint, (kind, path) =>
      kind === 'put' && path.includes('partNumber=2') ? 'denied' : undefined,
    );
    const location = store.location('parts-denied', { endpoint: proxy.endpoint });
    const { environment } = store;
    await using bucket = await openBucket(location, { environment });
    await expect(bucket.put('backups/b1/b1.tar.gz', body())).rejects.toMatchObject({
      code: 'STORAGE_DENIED',
    });
    expect(await bucket.has('backups/b1/b1.tar.gz')).toBe(false);
  }, 60_000);
});
