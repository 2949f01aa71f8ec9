import {
  CreateBucketCommand,
  DeleteObjectCommand,
  HeadObjectCommand,
  ListObjectVersionsCommand,
  PutObjectLockConfigurationCommand,
  PutObjectRetentionCommand,
  S3Client,
} from '@aws-sdk/client-s3';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import {
  BackupArchive,
  bucketOf,
  MoverLogArchive,
  RestoreArchive,
} from '../../../src/archive/index.ts';
import {
  HOUR_NS,
  OffsetClock,
  Secret,
  silentLogger,
  systemClock,
} from '../../../src/base/index.ts';
import { openBucket, openStorage } from '../../../src/blob/index.ts';
import { runMaintenance } from '../../../src/repository/index.ts';
import { BackupLocks } from '../../../src/server/sync/backup-locks.ts';
import { prepareRepository } from '../../../src/server/repositories/prepare.ts';
import { planGarbageCollection as collectGarbage } from '../../../src/snapshot/index.ts';
import { RestoreCluster } from '../../restore/support/cluster.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { noise } from '../../support/noise.ts';
import { hasStore, startStore } from '../../support/object-stores.ts';
import { backUp, openTest, PASSWORD, recordingLogger } from '../../support/repositories.ts';
import { startS3Log } from '../../support/s3-log.ts';
import { Rig as RestoreRig } from '../restores/run/support/rig.ts';
import { World as RestoreWorld } from '../restores/support/world.ts';
import { configMaps, Rig } from './run/support/rig.ts';
import { done, progress } from '../operations/support/after-run.ts';
import { ITEM, World } from './support/world.ts';

const scratch = tempDirectory('object-lock');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});
const BUCKET = 'locked';
const DAY_MS = 86_400_000;
const CLIENT = { username: 'default', hostname: 'default' };

async function lockedStore() {
  const store = await startStore('minio');
  const { environment, endpoint } = store;
  // All requests but the test's own pass through it.
  const log = await startS3Log(endpoint, { host: '127.0.0.1', port: 0 });
  const client = new S3Client({
    endpoint,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: {
      accessKeyId: environment.AWS_ACCESS_KEY_ID ?? '',
      secretAccessKey: environment.AWS_SECRET_ACCESS_KEY ?? '',
    },
  });
  await client.send(new CreateBucketCommand({ Bucket: BUCKET, ObjectLockEnabledForBucket: true }));
  await client.send(
    new PutObjectLockConfigurationCommand({
      Bucket: BUCKET,
      ObjectLockConfiguration: {
        ObjectLockEnabled: 'Enabled',
        Rule: { DefaultRetention: { Mode: 'GOVERNANCE', Days: 1 } },
      },
    }),
  );
  const location = (prefix: string, parameters = {}): string =>
    store.location(prefix, { ...parameters, endpoint: log.endpoint }).replace('backups', BUCKET);
  return { store, log, client, environment, location };
}

/** Number of versions of each key, without delete markers. */
async function versionsIn(client: S3Client): Promise<Map<string, number>> {
  const counts = new Map<string, number>();
  let markers: { KeyMarker?: string; VersionIdMarker?: string } = {};
  for (;;) {
    const page = await client.send(new ListObjectVersionsCommand({ Bucket: BUCKET, ...markers }));
    for (const { Key = '' } of page.Versions ?? []) counts.set(Key, (counts.get(Key) ?? 0) + 1);
    if (page.IsTruncated !== true) return counts;
    markers = {
      ...(page.NextKeyMarker !== undefined && { KeyMarker: page.NextKeyMarker }),
      ...(page.NextVersionIdMarker !== undefined && { VersionIdMarker: page.NextVersionIdMarker }),
    };
  }
}

it.skipIf(!hasStore('minio'))(
  'in a bucket with object lock no key has two versions after a backup, its operations, a restore and maintenance',
  async () => {
    const { store, log: s3, client, environment, location } = await lockedStore();
    await using running = store;
    await using changes = s3;
    await using inner = await openBucket(location('cluster'), { environment });
    for (const [place, isLocked] of [
      [location('cluster'), true],
      [store.location('cluster'), false],
    ] as const) {
      await using storage = await openStorage(place, { environment });
      expect(await storage.isLockable?.(), place).toBe(isLocked);
    }
    const mode = { isWriteOnce: true };
    const bucket = bucketOf(inner, mode);

    // The run, with an unfinished operation, and the log of its data mover, twice.
    const cluster = configMaps(30);
    const run = await new Rig({
      cluster,
      bucket,
      actions: [
        {
          name: 'a.io/move',
          appliesTo: { includedResources: ['configmaps'] },
          execute: ({ metadata: { name } }) =>
            Promise.resolve(
              name === 'c0' ? { operationId: 'op-0', postOperationItems: [ITEM] } : {},
            ),
        },
      ],
    }).run();
    expect(run.phase).toBe('WaitingForPluginOperations');
    const log = {
      owner: { kind: 'Backup', name: 'b1', uid: 'u1' },
      volume: 'a.data',
      title: 'DataUpload d',
      node: 'n',
      time: '2026-11-27T08:00:00Z',
    } as const;
    for (const pod of ['p1', 'p2']) {
      await new MoverLogArchive(bucket).add({ ...log, pod, text: Buffer.from(`of ${pod}\n`) });
    }

    // Its operations, and its end.
    const world = new World(run.phase, { ...mode, bucket: inner });
    world.say(run.status);
    const server = world.server(scratch);
    world.answers.set('op-0', progress());
    await server.step();
    world.answers.set('op-0', done);
    await server.step();
    expect(world.status.phase).toBe('Finalizing');
    // Before the end, Velero sees no backup.
    expect(await inner.has('backups/b1/velero-backup.json')).toBe(false);
    await server.finalize();
    expect(world.status.phase).toBe('Completed');
    const stored = await new BackupArchive(inner).open('b1');
    expect(stored.metadata.status?.phase).toBe('Completed');
    expect((await stored.resourceList())['v1/ConfigMap']).toHaveLength(30);
    expect(await new MoverLogArchive(bucket).volumes(log.owner)).toEqual(['a.data']);

    // A restore of it.
    const target = new RestoreCluster();
    const restored = await new RestoreRig({ cluster: target, bucket }).run();
    expect(restored.phase).toBe('Finalizing');
    expect(target.get('configmaps', 'a/c7')).toBeDefined();
    const after = new RestoreWorld(restored.phase, {}, { ...mode, bucket: inner });
    after.say(restored.status);
    await after.server(scratch).finalize();
    expect(after.status.phase).toBe('Completed');
    // Includes the item that the operation has added.
    expect((await new RestoreArchive(inner).resourceList('r1'))['v1/ConfigMap']).toHaveLength(31);

    // A repository made by the server, with two backups of a volume and maintenance in between.
    const repo = location('cluster/kopia/app', { writeOnce: 'true' });
    const retention = { mode: 'GOVERNANCE', periodNs: 72n * HOUR_NS } as const;
    const password = new Secret(PASSWORD);
    for (let times = 0; times < 2; times++) {
      await using storage = await openStorage(repo, { environment });
      await prepareRepository({
        storage,
        password,
        retention,
        clock: systemClock,
        logger: silentLogger,
        locationName: 'velero/default',
        isReadOnly: false,
      });
    }
    const clock = new OffsetClock(systemClock);
    const tree = join(scratch, 'tree');
    fs.mkdirSync(tree);
    for (const file of ['a', 'b']) {
      fs.writeFileSync(join(tree, file), noise(file, 200_000));
      await using repository = await openTest(repo, {
        clock,
        client: CLIENT,
        storage: { environment },
      });
      expect(repository.format.retention).toEqual(retention);
      await backUp(repository, tree);
      await repository.flush();
      const report = await runMaintenance(repository, {
        mode: 'full',
        safety: 'none',
        force: true,
        dryRun: false,
        collectGarbage,
        signal: new AbortController().signal,
        logger: silentLogger,
      });
      const extended = report.tasks.find(({ task }) => task === 'extend-blob-retention-time');
      expect(Number(extended?.stats?.extendedBlobCount)).toBeGreaterThan(3);
    }

    // The sync extends the locks of the backup's files.
    const backup = {
      ...world.backup,
      status: {
        ...world.backup.status,
        expiration: new Date(Date.now() + 9 * DAY_MS).toISOString(),
      },
    };
    // A longer lock of another user stays.
    await client.send(
      new PutObjectRetentionCommand({
        Bucket: BUCKET,
        Key: 'cluster/backups/b1/b1.tar.gz',
        ChecksumAlgorithm: 'CRC32',
        Retention: { Mode: 'GOVERNANCE', RetainUntilDate: new Date(Date.now() + 20 * DAY_MS) },
      }),
    );
    const logger = recordingLogger();
    const extend = (): Promise<number> =>
      new BackupLocks().extend({
        bucket,
        location: 'default',
        backups: [backup],
        logger,
        retention: { mode: 'GOVERNANCE', periodNs: 120n * HOUR_NS },
        nowNs: systemClock.nowNs(),
        assertLeading: () => undefined,
        signal: new AbortController().signal,
      });
    expect(await extend()).toBe(1);
    expect(logger.messages).toEqual([]);
    for (const [file, lockedDays] of [
      ['b1.tar.gz', 20],
      ['velero-backup.json', 5],
    ] as const) {
      const head = await client.send(
        new HeadObjectCommand({ Bucket: BUCKET, Key: `cluster/backups/b1/${file}` }),
      );
      expect(head.ObjectLockMode).toBe('GOVERNANCE');
      const days = ((head.ObjectLockRetainUntilDate?.getTime() ?? 0) - Date.now()) / DAY_MS;
      expect(Math.round(days), file).toBe(lockedDays);
      await expect(
        client.send(
          new DeleteObjectCommand({
            Bucket: BUCKET,
            Key: `cluster/backups/b1/${file}`,
            VersionId: head.VersionId,
          }),
        ),
      ).rejects.toThrow(/WORM|protected|Access Denied/i);
    }

    const versions = await versionsIn(client);
    expect(versions.size).toBeGreaterThan(40);
    expect([...versions].filter(([, count]) => count > 1)).toEqual([]);
    expect(new Set(changes.puts(`${BUCKET}/`)).size).toBeGreaterThanOrEqual(versions.size);
    expect(changes.putTwice(`${BUCKET}/`)).toEqual([]);

    if (hasKopia) {
      const flags = running.kopia?.('cluster/kopia/app') ?? [];
      const kopia = new Kopia(PASSWORD).connectTo(
        flags.map((flag) => (flag === 'backups' ? BUCKET : flag)),
      );
      kopia.verifyAll();
    }

    // A deletion hides locked files. No reader takes the rest for a backup.
    await new BackupArchive(bucket).delete('b1');
    expect(await Array.fromAsync(bucket.list('backups/b1/'))).toEqual([]);
    expect((await versionsIn(client)).has('cluster/backups/b1/velero-backup.json')).toBe(true);
  },
  120_000,
);
