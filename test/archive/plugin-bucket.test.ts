import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { pluginBucket } from '../../src/archive/index.ts';
import { silentLogger } from '../../src/base/index.ts';
import type { Body, Bucket } from '../../src/blob/index.ts';
import { type ObjectStore, PluginHost } from '../../src/plugin/index.ts';
import { bucketContract } from '../contract/bucket.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import {
  BUCKET,
  hasStore,
  type ObjectStore as Store,
  startStore,
} from '../support/object-stores.ts';
import { hasPeers, peer } from '../support/real-api.ts';

/** A plugin's object store in memory, with a fault. */
function memoryStore(over: Partial<ObjectStore> = {}): ObjectStore {
  const bucket = new MemoryBucket();
  return {
    put: (_, key, body: Body, { signal }) => bucket.put(key, body, { signal }),
    get: (_, key, { signal }) => bucket.get(key, { signal }),
    exists: (_, key) => bucket.has(key),
    list: (_, prefix) => Array.fromAsync(bucket.list(prefix)),
    listCommonPrefixes: async (_, delimiter, prefix) =>
      (await Array.fromAsync(bucket.listFolders(prefix))).map(
        (name) => `${prefix}${name}${delimiter}`,
      ),
    delete: (_, key) => bucket.delete(key),
    signedUrl: () => bucket.signedUrl(),
    ...over,
  };
}
const open = (over?: Partial<ObjectStore>, prefix = 'cluster/a'): Bucket =>
  pluginBucket(memoryStore(over), { bucket: 'b', prefix, provider: 'other.example.io/memory' });

// Signing fails with the plugin's words there.
bucketContract('plugin in memory', () =>
  Promise.resolve(open({ signedUrl: () => Promise.resolve(`data:,${encodeURI('to download')}`) })),
);

describe('a bucket behind a plugin', () => {
  it('names the plugin, the bucket and the call in what fails', async () => {
    const fail = (): Promise<never> => Promise.reject(new Error('rpc error: no space'));
    const bucket = open({ put: fail, exists: fail, delete: fail, list: fail, signedUrl: fail });
    const told = (what: string): object => ({
      code: 'STORAGE_FAILED',
      retry: 'backoff',
      message: `${what} at other.example.io/memory:b/cluster/a/ failed: rpc error: no space`,
    });
    await expect(bucket.put('x', [])).rejects.toMatchObject(told('put of x'));
    await expect(bucket.has('x')).rejects.toMatchObject(told('look for x'));
    await expect(bucket.delete('x')).rejects.toMatchObject(told('delete of x'));
    await expect(bucket.signedUrl('x', 1)).rejects.toMatchObject(told('sign x'));
    await expect(Array.fromAsync(bucket.list('x'))).rejects.toMatchObject(told('list of x'));
  });

  it('deletes what is missing without a word, also where the plugin has one', async () => {
    const keys = new Set(['b/x', 'b/stays']);
    const bucket = open(
      {
        exists: (_, key) => Promise.resolve(keys.has(key)),
        delete: (_, key) =>
          key !== 'b/stays' && keys.delete(key)
            ? Promise.resolve()
            : Promise.reject(new Error("storage: object doesn't exist")),
      },
      '',
    );
    await bucket.delete('b/x');
    await bucket.delete('b/x');
    await expect(bucket.delete('b/stays')).rejects.toMatchObject({ code: 'STORAGE_FAILED' });
  });

  it('is not believed when it lists what lies elsewhere', async () => {
    const bucket = open({
      list: () => Promise.resolve(['cluster/b/backups/b1/x']),
      listCommonPrefixes: () => Promise.resolve(['cluster/']),
    });
    const refused = {
      code: 'BAD_LISTING',
      message: expect.stringContaining('is not below') as string,
    };
    await expect(Array.fromAsync(bucket.list('backups/'))).rejects.toMatchObject(refused);
    await expect(Array.fromAsync(bucket.listFolders(''))).rejects.toMatchObject(refused);
  });

  it('needs no prefix', async () => {
    const bucket = open({}, '');
    await bucket.put('backups/b1/x', [Buffer.from('1')]);
    expect(await Array.fromAsync(bucket.listFolders(''))).toEqual(['backups']);
  });
});

describe.skipIf(!hasPeers('velero-plugin-for-aws') || !hasStore('minio'))(
  "Velero's plugin for AWS",
  () => {
    let folder: string;
    let store: Store;
    let host: PluginHost;
    let prefixes = 0;
    beforeAll(async () => {
      folder = fs.mkdtempSync(join(tmpdir(), 'longshore-bucket-'));
      store = await startStore('minio');
      fs.symlinkSync(peer('velero-plugin-for-aws'), join(folder, 'velero-plugin-for-aws'));
      host = await PluginHost.open({
        folder,
        flags: [],
        environment: { ...store.environment, PATH: process.env.PATH },
        logger: silentLogger,
      });
    }, 60_000);
    afterAll(async () => {
      await host.close();
      await store[Symbol.asyncDispose]();
      fs.rmSync(folder, { recursive: true, force: true });
    });

    const openAws = (): Promise<Bucket> => {
      const prefix = `aws-${prefixes++}`;
      const config = {
        bucket: BUCKET,
        prefix,
        region: 'us-east-1',
        s3ForcePathStyle: 'true',
        s3Url: store.endpoint,
      };
      const objects = host.manager(silentLogger).objectStore('aws', config);
      return Promise.resolve(
        pluginBucket(objects, { bucket: BUCKET, prefix, provider: 'velero.io/aws' }),
      );
    };
    bucketContract('velero.io/aws', openAws);
  },
);
