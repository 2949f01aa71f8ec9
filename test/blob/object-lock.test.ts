import { CreateBucketCommand, HeadObjectCommand, S3Client } from '@aws-sdk/client-s3';
import * as fs from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { listAll } from '../../src/blob/index.ts';
import {
  loadMaintenanceParameters,
  putMaintenanceParameters,
  runMaintenance,
} from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import { hasStore, startStore } from '../support/object-stores.ts';
import { backUp, openTest, PASSWORD } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const work = tempDirectory('object-lock');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const BUCKET = 'locked';
const DAY_MS = 86_400_000;

it.skipIf(!hasStore('minio') || !hasKopia)(
  'a repository that Kopia made under object lock: packs and indexes are locked, and maintenance extends it',
  async () => {
    await using store = await startStore('minio');
    const { environment, endpoint } = store;
    const client = new S3Client({
      endpoint,
      region: 'us-east-1',
      forcePathStyle: true,
      credentials: {
        accessKeyId: environment.AWS_ACCESS_KEY_ID ?? '',
        secretAccessKey: environment.AWS_SECRET_ACCESS_KEY ?? '',
      },
    });
    await client.send(
      new CreateBucketCommand({ Bucket: BUCKET, ObjectLockEnabledForBucket: true }),
    );
    const kopiaFlags = (store.kopia?.('repo') ?? []).map((flag) =>
      flag === 'backups' ? BUCKET : flag,
    );
    const retention = ['--retention-mode', 'GOVERNANCE', '--retention-period', '48h'];
    const kopia = new Kopia(PASSWORD).createAt(kopiaFlags, ...retention);

    makeTree(work, 'locked');
    const location = store.location('repo').replace('backups', BUCKET);
    const repository = await openTest(location, { storage: { environment } });
    expect(repository.format.retention?.mode).toBe('GOVERNANCE');
    await backUp(repository, work);
    const lockOf = async (id: string): Promise<{ mode: string | undefined; untilMs: number }> => {
      const head = await client.send(new HeadObjectCommand({ Bucket: BUCKET, Key: `repo/${id}` }));
      return { mode: head.ObjectLockMode, untilMs: head.ObjectLockRetainUntilDate?.getTime() ?? 0 };
    };
    const ours = await listAll(repository.storage, 'p');
    expect(ours.length).toBeGreaterThan(0);
    for (const { id } of [...ours, ...(await listAll(repository.storage, 'xn'))]) {
      const { mode, untilMs } = await lockOf(id);
      expect(mode, id).toBe('GOVERNANCE');
      expect(untilMs).toBeGreaterThan(Date.now() + 1.9 * DAY_MS);
    }

    const parameters = (await loadMaintenanceParameters(repository)) ?? expect.fail();
    await putMaintenanceParameters(repository, { ...parameters, extendObjectLocks: true });
    await repository.flush();
    const [first] = ours;
    const before = await lockOf(first?.id ?? '');
    await sleep(1100); // The service counts in whole seconds.
    const result = await runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: true,
      dryRun: false,
      signal: new AbortController().signal,
      logger: silentLogger,
      collectGarbage,
    });
    const report = result.tasks.find(({ task }) => task === 'extend-blob-retention-time');
    expect(report?.skipped).toBeUndefined();
    expect(Number(report?.stats?.extendedBlobCount)).toBeGreaterThan(5);
    const after = await lockOf(first?.id ?? '');
    expect(after.untilMs).toBeGreaterThan(before.untilMs);
    kopia.verifyAll();
    await repository.close();
    client.destroy();
  },
);
