import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MINUTE_NS, rfc3339Seconds, systemClock } from '../../src/base/index.ts';
import { openBucket } from '../../src/blob/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  DELETE_BACKUP_REQUESTS,
  DEPLOYMENTS,
  type KubeObject,
  LEASES,
  NAMESPACES,
  PVCS,
  type Resource,
  RESTORES,
  SCHEDULES,
  SECRETS,
  waitFor,
  waitGone,
} from '../../src/kube/index.ts';
import { OwnServer } from '../support/own-server.ts';
import { sharedPackage } from '../support/package.ts';
import { hasPeers, hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const PORT_A = 27_500;
const PORT_B = 27_600;
/** The bucket is in the second cluster, where the real Velero uses it, too. */
const BUCKET_PORT = PORT_B + 3;
const VELERO = 'velero';
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
const WAIT = { timeoutMs: 30_000 };

type Found = KubeObject & {
  readonly spec?: Readonly<Record<string, unknown>>;
  readonly data?: Readonly<Record<string, string>>;
  readonly status?: Readonly<Record<string, unknown>> & { readonly phase?: string };
};

const WIDGETS: Resource<Found> = {
  group: 'example.com',
  version: 'v1',
  plural: 'widgets',
  kind: 'Widget',
  namespaced: true,
};

const DEFINITIONS = {
  group: 'apiextensions.k8s.io',
  version: 'v1',
  plural: 'customresourcedefinitions',
  kind: 'CustomResourceDefinition',
  namespaced: false,
};

describe.skipIf(!hasRealApi() || !hasPeers('minio'))('two clusters with one bucket', () => {
  let a: RealApi;
  let b: RealApi;
  const servers: OwnServer[] = [];

  beforeAll(async () => {
    [a, b] = await Promise.all([
      startRealApi(PORT_A, { hasVeleroCrds: true }),
      startRealApi(PORT_B, { hasVeleroCrds: true }),
    ]);
    await b.stack('up', 's3');
    await Promise.all([a, b].map(prepare));
    const file = join(a.directory, 'objects.json');
    fs.writeFileSync(file, list([DEFINITION]));
    await a.kubectl('apply', '-f', file);
    await a.kubectl('wait', '--for=condition=Established', 'crd/widgets.example.com');
    fs.writeFileSync(file, list(OBJECTS));
    await a.kubectl('apply', '-f', file);
    servers.push(startOurs(a), startOurs(b));
    for (const api of [a, b]) {
      const isUsable = ({ status }: Found): boolean => status?.phase === 'Available';
      await until(api, BACKUP_STORAGE_LOCATIONS, 'default', isUsable);
    }
  }, 120_000);
  afterAll(async () => {
    for (const server of servers) await server[Symbol.asyncDispose]();
    await a[Symbol.asyncDispose]();
    await b[Symbol.asyncDispose]();
  });

  async function prepare({ client }: RealApi): Promise<void> {
    await client.create(NAMESPACES, { metadata: { name: VELERO } }).catch(() => undefined);
    const cloud = '[default]\naws_access_key_id=peersaccess\naws_secret_access_key=peerssecret\n';
    await client.create(SECRETS, {
      metadata: { namespace: VELERO, name: 'cloud-credentials' },
      data: { cloud: Buffer.from(cloud).toString('base64') },
    });
    // The well-known password signs nothing.
    const password = Buffer.from('a password of both').toString('base64');
    await client.create(SECRETS, {
      metadata: { namespace: VELERO, name: 'velero-repo-credentials' },
      data: { 'repository-password': password },
    });
    await client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { namespace: VELERO, name: 'default' },
      spec: {
        provider: 'aws',
        default: true,
        objectStorage: { bucket: 'velero' },
        backupSyncPeriod: '1s',
        credential: { name: 'cloud-credentials', key: 'cloud' },
        config: {
          region: 'us-east-1',
          s3ForcePathStyle: 'true',
          s3Url: `http://127.0.0.1:${BUCKET_PORT}`,
        },
      },
    });
  }

  function startOurs(api: RealApi): OwnServer {
    const home = join(api.directory, 'own-home');
    fs.mkdirSync(join(home, 'plugins'), { recursive: true });
    return OwnServer.start({
      program: join(sharedPackage(), 'bin/longshore'),
      parameters: [
        ...['server', '--namespace', VELERO, '--metrics-address', '127.0.0.1:0'],
        ...['--plugin-dir', join(home, 'plugins'), '--backup-sync-period', '1s'],
      ],
      env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
      log: join(api.directory, 'own-server.log'),
    });
  }

  const get = (api: RealApi, resource: object, namespace: string | undefined, name: string) =>
    api.client.find(resource as Resource<Found>, { namespace, name });
  const until = (
    api: RealApi,
    resource: object,
    name: string,
    isSo: (found: Found) => boolean,
  ): Promise<Found> =>
    waitFor<Found, Found>(
      api.client,
      resource as Resource<Found>,
      { namespace: VELERO, name },
      (found) => (found && isSo(found) ? found : undefined),
      WAIT,
    );
  const isOver = ({ status }: Found): boolean => FINAL.test(status?.phase ?? '');

  async function backUp(name: string): Promise<Found> {
    await a.client.create(BACKUPS, {
      metadata: { namespace: VELERO, name },
      spec: { includedNamespaces: ['shop'], snapshotVolumes: false, storageLocation: 'default' },
    });
    return until(a, BACKUPS, name, isOver);
  }

  async function restoreInB(name: string, backupName: string, to: string): Promise<Found> {
    await until(b, BACKUPS, backupName, () => true);
    await b.client.create(RESTORES, {
      metadata: { namespace: VELERO, name },
      spec: { backupName, namespaceMapping: { shop: to } },
    });
    const restore = await until(b, RESTORES, name, isOver);
    expect(restore.status).toMatchObject({ phase: 'Completed' });
    return restore;
  }

  async function assertRestored(to: string): Promise<void> {
    expect((await get(b, CONFIG_MAPS, to, 'settings'))?.data).toEqual({ color: 'blue' });
    const deployment = await get(b, DEPLOYMENTS, to, 'web');
    expect(deployment?.metadata.labels).toMatchObject({ app: 'web' });
    expect((await get(b, PVCS, to, 'data'))?.spec).toMatchObject({ storageClassName: 'none' });
    expect((await get(b, WIDGETS, to, 'w'))?.spec).toEqual({ size: 3 });
    expect(await get(b, DEFINITIONS, undefined, 'widgets.example.com')).toBeDefined();
    // The original namespace is not created.
    expect(await get(b, NAMESPACES, undefined, 'shop')).toBeUndefined();
  }

  it('restore in one what the other has backed up, with its definitions, into another namespace', async () => {
    const backup = await backUp('b1');
    expect(backup.status).toMatchObject({ phase: 'Completed' });
    const synced = await until(b, BACKUPS, 'b1', isOver);
    expect(synced.metadata.uid).not.toBe(backup.metadata.uid);
    expect(synced.status).toMatchObject({ phase: 'Completed', progress: backup.status?.progress });
    await restoreInB('r1', 'b1', 'copy');
    await assertRestored('copy');
    // The files of the restore are in the bucket, and the other cluster ignores them.
    expect(await get(a, RESTORES, VELERO, 'r1')).toBeUndefined();
  }, 60_000);

  it('have schedules of the same name, each of which counts its own backups alone', async () => {
    const schedule = (space: string) => ({
      metadata: { namespace: VELERO, name: 'hourly' },
      spec: {
        schedule: '@every 1h',
        skipImmediately: false,
        template: { includedNamespaces: [space], snapshotVolumes: false },
      },
      // Both were due at the same moment, so both backups would have the same name.
      status: {
        phase: 'Enabled',
        lastBackup: rfc3339Seconds(systemClock.nowNs() - 90n * MINUTE_NS),
      },
    });
    const backupsOf = async (api: RealApi): Promise<Found[]> => {
      const labelSelector = 'velero.io/schedule-name=hourly';
      const found = await api.client.list(BACKUPS, { namespace: VELERO, labelSelector });
      return found;
    };
    const lastOf = async (api: RealApi): Promise<unknown> =>
      (await get(api, SCHEDULES, VELERO, 'hourly'))?.status?.lastBackup;
    const both = async (): Promise<string[][]> =>
      Promise.all(
        [a, b].map(async (api) =>
          (await backupsOf(api)).filter(isOver).map(({ metadata }) => metadata.name),
        ),
      );
    await a.client.create(SCHEDULES, schedule('shop'));
    await expect.poll(async () => (await both())[1]?.length, { timeout: 30_000 }).toBe(1);
    const firstOfA = await lastOf(a);
    // The other cluster's schedule is due, too, and its backup gets another name.
    const ofB = (await b.client.create(SCHEDULES, schedule('copy'))).metadata.uid;
    await expect
      .poll(async () => (await both()).map((names) => names.length), { timeout: 30_000 })
      .toEqual([2, 2]);
    const [inA = [], inB = []] = await both();
    expect(inA.sort()).toEqual(inB.sort());
    const uids = (await backupsOf(b)).map(
      ({ metadata }) => metadata.labels?.['longshore.io/schedule-uid'],
    );
    // Any writer to the bucket could give a backup the label of this schedule.
    expect(new Set(uids)).toEqual(new Set([ofB, undefined]));
    expect((await backupsOf(b)).map(({ status }) => status?.phase)).toEqual([
      'Completed',
      'Completed',
    ]);
    // The other cluster's backup changed nothing here.
    expect(await lastOf(a)).toBe(firstOfA);
  }, 60_000);

  it('restore whole clusters into each other, and do nothing again that the other one did', async () => {
    const done = { completionTimestamp: rfc3339Seconds(systemClock.nowNs()), phase: 'Completed' };
    await a.client.create(DATA_DOWNLOADS, {
      metadata: { namespace: VELERO, name: 'done' },
      spec: {
        backupStorageLocation: 'default',
        snapshotID: 'x',
        sourceNamespace: 'shop',
        operationTimeout: '10m0s',
        targetVolume: { namespace: 'shop', pvc: 'data', pv: '' },
      },
      status: done,
    } as never);
    await a.client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'refused' },
      spec: { backupName: 'b1' },
      status: { phase: 'Processed', errors: ['refused'] },
    });
    const lease = { namespace: VELERO, name: 'longshore-server' };
    const holder = async (): Promise<unknown> =>
      (await b.client.find(LEASES, lease))?.spec?.holderIdentity;
    const before = await holder();
    await a.client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'whole' },
      spec: { snapshotVolumes: false, storageLocation: 'default' },
    });
    expect((await until(a, BACKUPS, 'whole', isOver)).status).toMatchObject({ phase: 'Completed' });
    await until(b, BACKUPS, 'whole', isOver);
    await b.client.create(RESTORES, {
      metadata: { namespace: VELERO, name: 'whole' },
      spec: {
        backupName: 'whole',
        existingResourcePolicy: 'update',
        namespaceMapping: { shop: 'fourth' },
      },
    });
    const restore = await until(b, RESTORES, 'whole', isOver);
    expect(restore.status?.phase).toMatch(/^(Completed|PartiallyFailed)$/);
    for (const resource of [DATA_DOWNLOADS, DELETE_BACKUP_REQUESTS] as const) {
      const found = await b.client.list(resource, { namespace: VELERO });
      expect(found.map(({ metadata }) => metadata.name)).toEqual([]);
    }
    expect(await holder()).toBe(before);
    const labels = (await b.client.get(LEASES, lease)).metadata.labels ?? {};
    expect(labels).not.toHaveProperty('velero.io/restore-name');
    expect(await get(b, BACKUPS, VELERO, 'b1')).toBeDefined();
    expect((await get(b, CONFIG_MAPS, 'fourth', 'settings'))?.data).toEqual({ color: 'blue' });
  }, 90_000);

  it('refuse a backup whose signature somebody took away in the bucket, or whose files were changed', async () => {
    for (const name of ['bare', 'forged', 'other']) await backUp(name);
    for (const api of [a, b]) {
      for (const name of ['bare', 'forged', 'other']) {
        const { metadata } = await until(api, BACKUPS, name, isOver);
        expect(metadata.annotations).toMatchObject({ 'longshore.io/signed': 'true' });
      }
    }
    const environment = { AWS_ACCESS_KEY_ID: 'peersaccess', AWS_SECRET_ACCESS_KEY: 'peerssecret' };
    const place = `s3://velero?endpoint=http://127.0.0.1:${BUCKET_PORT}&region=us-east-1`;
    await using bucket = await openBucket(place, { environment });
    const file = (name: string, key: string): string => `backups/${name}/${key}`;
    await bucket.delete(file('bare', 'longshore-checksums.json'));
    const key = file('forged', 'velero-backup.json');
    const pieces: Uint8Array[] = [];
    for await (const piece of bucket.get(key)) pieces.push(piece);
    const metadata = JSON.parse(Buffer.concat(pieces).toString()) as Found;
    const status = { ...metadata.status, warnings: 7 };
    await bucket.put(key, [Buffer.from(JSON.stringify({ ...metadata, status }))]);
    const why = { bare: 'was signed, and this cluster cannot find its signature', forged: 'checksum is wrong' }; // prettier-ignore
    for (const [name, text] of Object.entries(why)) {
      await b.client.create(RESTORES, {
        metadata: { namespace: VELERO, name },
        spec: { backupName: name, namespaceMapping: { shop: 'forged' } },
      });
      const restore = await until(b, RESTORES, name, isOver);
      expect(restore.status).toMatchObject({
        phase: 'Failed',
        failureReason: expect.stringContaining(text) as string,
      });
    }
    expect(await get(b, CONFIG_MAPS, 'forged', 'settings')).toBeUndefined();
    await restoreInB('other', 'other', 'signed');
  }, 90_000);

  it('lose in both what is deleted in one, and what was restored of it stays', async () => {
    await a.client.create(DELETE_BACKUP_REQUESTS, {
      metadata: { namespace: VELERO, name: 'delete-b1' },
      spec: { backupName: 'b1' },
    });
    const ref = { namespace: VELERO, name: 'b1' };
    await waitGone(a.client, BACKUPS, ref, WAIT);
    await waitGone(b.client, BACKUPS, ref, WAIT);
    expect((await get(b, CONFIG_MAPS, 'copy', 'settings'))?.data).toEqual({ color: 'blue' });
    // Other backups still exist.
    const left = await b.client.list(BACKUPS, { namespace: VELERO });
    expect(left.length).toBeGreaterThanOrEqual(2);
  }, 60_000);

  it.skipIf(!hasPeers('velero', 'velero-plugin-for-aws'))(
    'restore the same where the other one has the real Velero',
    async () => {
      await servers[1]?.[Symbol.asyncDispose]();
      // Velero reads the bucket at its start, and then each minute.
      await backUp('b2');
      await b.stack('up', 'velero');
      await restoreInB('r2', 'b2', 'third');
      await assertRestored('third');
    },
    90_000,
  );
});

const list = (items: readonly object[]): string =>
  JSON.stringify({ apiVersion: 'v1', kind: 'List', items });

const DEFINITION = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'widgets.example.com' },
  spec: {
    group: 'example.com',
    scope: 'Namespaced',
    names: { kind: 'Widget', plural: 'widgets', singular: 'widget', listKind: 'WidgetList' },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: {
            type: 'object',
            properties: {
              spec: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
            },
          },
        },
      },
    ],
  },
};

const OBJECTS = [
  { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'shop' } },
  {
    apiVersion: 'v1',
    kind: 'ConfigMap',
    data: { color: 'blue' },
    metadata: { namespace: 'shop', name: 'settings' },
  },
  {
    apiVersion: 'example.com/v1',
    kind: 'Widget',
    spec: { size: 3 },
    metadata: { namespace: 'shop', name: 'w' },
  },
  {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { namespace: 'shop', name: 'web', labels: { app: 'web' } },
    spec: {
      replicas: 0,
      selector: { matchLabels: { app: 'web' } },
      template: {
        metadata: { labels: { app: 'web' } },
        spec: { containers: [{ name: 'web', image: 'example.com/web:1' }] },
      },
    },
  },
  {
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: { namespace: 'shop', name: 'data' },
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: 'none',
      resources: { requests: { storage: '1Gi' } },
    },
  },
];
