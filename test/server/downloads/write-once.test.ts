import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { bucketOf, WriteOnceBucket } from '../../../src/archive/index.ts';
import { silentLogger } from '../../../src/base/index.ts';
import type { BlobStorage } from '../../../src/blob/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  connectToCluster,
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  EVENTS,
  NAMESPACES,
  waitFor,
} from '../../../src/kube/index.ts';
import { DownloadController } from '../../../src/server/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';

const scratch = tempDirectory('downloads');
const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

class SigningBucket extends MemoryBucket {
  override signedUrl(key?: string): Promise<never> {
    return Promise.resolve(`https://bucket.example/${key ?? ''}`) as Promise<never>;
  }
}

/** The controller on the embedded API server, and a write-once location. */
async function start(
  annotations: Record<string, string> = { 'longshore.io/write-once': 'true' },
  storage?: object,
) {
  const api = await ApiServer.start();
  ends.push(() => api[Symbol.asyncDispose]());
  const kubeconfig = join(scratch, 'kubeconfig');
  fs.writeFileSync(kubeconfig, api.kubeconfig, { mode: 0o600 });
  const client = connectToCluster({ kubeconfig, userAgent: 'downloads/1' });
  const namespace = 'velero';
  await client.create(NAMESPACES, { metadata: { name: namespace } });
  await client.create(BACKUP_STORAGE_LOCATIONS, {
    metadata: { namespace, name: 'default', annotations },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' } },
  });
  await client.create(BACKUPS, {
    metadata: { namespace, name: 'b1' },
    spec: { storageLocation: 'default' },
  });
  const inner = new SigningBucket();
  const bucket = bucketOf(inner, { isWriteOnce: true });
  const nothing = { [Symbol.asyncDispose]: () => Promise.resolve() };
  const controller = new DownloadController({
    client,
    namespace,
    logger: silentLogger,
    host: 'test',
    stores: {
      directory: scratch,
      defaultCredentials: () => undefined,
      openStorage: () =>
        storage
          ? Promise.resolve(storage as BlobStorage)
          : Promise.reject(new Error('the bucket is asked, and not the storage')),
    },
    buckets: { open: () => Promise.resolve({ bucket, ...nothing }) },
  });
  const abort = new AbortController();
  const running = controller.run(abort.signal, () => undefined);
  ends.push(async () => {
    abort.abort();
    await running;
    client.close();
  });
  const ask = (name: string, backup = 'b1') =>
    client.create(DOWNLOAD_REQUESTS, {
      metadata: { namespace, name },
      spec: { target: { kind: 'BackupLog', name: backup } },
    });
  const told = async (): Promise<string[]> =>
    (await client.list(EVENTS, { namespace })).map(({ message }) => message ?? '');
  const urlOf = async (name: string): Promise<string> => {
    await ask(name);
    return waitFor(
      client,
      DOWNLOAD_REQUESTS,
      { namespace, name },
      (request) => (request?.status?.downloadURL ? request.status.downloadURL : undefined),
      { timeoutMs: 10_000, signal: new AbortController().signal },
    );
  };
  return { bucket, client, namespace, urlOf, ask, told };
}

describe('downloads from a location that is written once', () => {
  it('lead to the newest version of a file that may still change, and then to the file', async () => {
    const { bucket, urlOf } = await start();
    const key = 'backups/b1/b1-logs.gz';
    // The file is not stored yet. The CLI handles a 404.
    expect(await urlOf('early')).toBe(`https://bucket.example/${key}`);
    for (const text of ['one', 'two']) await bucket.put(key, [Buffer.from(text)]);
    expect(await urlOf('waiting')).toMatch(
      /^https:\/\/bucket\.example\/backups\/b1\/longshore-once\/b1-logs\.gz\/00000002-[0-9a-f]{8}$/,
    );
    if (!(bucket instanceof WriteOnceBucket)) expect.fail('it is written once');
    await bucket.seal('backups/b1/', { uid: 'u1' });
    expect(await urlOf('over')).toBe(`https://bucket.example/${key}`);
  });
});

describe('downloads from a location without annotations', () => {
  it('hand out no ciphertext, and URLs of plain files', async () => {
    let text = 'LSCRYPT1 and more';
    const { ask, told, urlOf } = await start(
      {},
      {
        getMetadata: () => Promise.resolve({ lengthBytes: text.length }),
        getBlob: () => Promise.resolve(Buffer.from(text.slice(0, 8))),
        signedUrl: (id: string) => Promise.resolve(`https://bucket.example/${id}`),
        close: () => Promise.resolve(),
      },
    );
    await ask('encrypted');
    await expect.poll(told).toEqual([expect.stringContaining('b1-logs.gz is encrypted')]);
    text = 'plain text';
    expect(await urlOf('plain')).toBe('https://bucket.example/backups/b1/b1-logs.gz');
  });
});

describe('downloads of an object without files', () => {
  it.each(['New', 'Queued', 'FailedValidation'])('fail with a message: %s', async (phase) => {
    const { ask, client, namespace } = await start();
    await client.create(BACKUPS, {
      metadata: { namespace, name: 'early' },
      spec: { storageLocation: 'default' },
      status: { phase },
    });
    await ask('logs', 'early');
    const look = (request?: DownloadRequest) =>
      request?.status?.phase === 'Failed' ? request.status : undefined;
    const ref = { namespace, name: 'logs' };
    expect(await waitFor(client, DOWNLOAD_REQUESTS, ref, look, { timeoutMs: 10_000 })).toEqual({
      phase: 'Failed',
      message: `backup early is in phase ${phase} and has no files`,
      expiration: expect.any(String) as string,
    });
  });
});
