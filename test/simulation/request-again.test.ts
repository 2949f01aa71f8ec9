import { expect, it } from 'vitest';
import { type Clock, silentLogger } from '../../src/base/index.ts';
import type { BlobStorage } from '../../src/blob/index.ts';
import { Store, type Stored } from '../../src/dev/api-server/store.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DOWNLOAD_REQUESTS,
  type DownloadRequest,
  type KubeObject,
  type Resource,
} from '../../src/kube/index.ts';
import { DownloadController } from '../../src/server/index.ts';
import { SimulatedClient } from './simulated-client.ts';
import { Random, VirtualTime } from './virtual-time.ts';

const NAMESPACE = 'velero';
const START_MS = Date.UTC(2026, 0, 1);
const CALM = { refused: 0, lost: 0, cut: 0, latencyMs: 20, watchLagMs: 50 };

it('a request that was made again under its name gets no URL of what was asked for before', async () => {
  using time = new VirtualTime(1);
  time.install();
  const clock: Clock = { nowNs: () => BigInt(Math.round((START_MS + time.nowMs) * 1e6)) };
  const store = new Store(clock);
  const create = (resource: Resource<KubeObject>, name: string, spec: object): void => {
    const object = { metadata: { name, namespace: NAMESPACE }, spec };
    store.create(resource, NAMESPACE, object as unknown as Stored);
  };
  create(BACKUP_STORAGE_LOCATIONS, 'default', {
    provider: 'aws',
    objectStorage: { bucket: 'bucket' },
  });
  for (const name of ['first', 'second']) create(BACKUPS, name, { storageLocation: 'default' });
  const ask = (name: string): void => {
    create(DOWNLOAD_REQUESTS, 'fetch', { target: { kind: 'BackupLog', name } });
  };
  const storage = {
    // The bucket is slow.
    getMetadata: () => new Promise((resume) => time.after(2500, () => resume({ lengthBytes: 1 }))),
    signedUrl: (id: string) => Promise.resolve(`https://bucket/${id}`),
    close: () => Promise.resolve(),
  } as unknown as BlobStorage;
  const client = new SimulatedClient(store, time, clock, new Random(1), () => CALM).asClient;
  const stop = new AbortController();
  const controller = new DownloadController({
    client,
    namespace: NAMESPACE,
    logger: silentLogger,
    host: 'server',
    stores: {
      directory: '/nowhere',
      defaultCredentials: () => undefined,
      openStorage: () => Promise.resolve(storage),
    },
  });
  controller.run(stop.signal, () => undefined).catch(() => undefined);
  time.after(1000, () => {
    ask('first');
  });
  time.after(2000, () => {
    store.delete(DOWNLOAD_REQUESTS, NAMESPACE, 'fetch');
    ask('second');
  });
  await time.run(20_000, () => false);
  stop.abort();
  const [found] = store.list(DOWNLOAD_REQUESTS, { namespace: NAMESPACE }) as unknown as [
    DownloadRequest,
  ];
  expect(found.status?.downloadURL).toBe('https://bucket/backups/second/second-logs.gz');
});
