import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { messageOf, silentLogger } from '../../../src/base/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { type ObjectStore, PluginHost, type PluginManager } from '../../../src/plugin/index.ts';
import {
  BUCKET,
  hasStore,
  type ObjectStore as Bucket,
  startStore,
} from '../../support/object-stores.ts';
import { sharedPackage } from '../../support/package.ts';
import { backupOf, restoreOf } from '../../support/plugin-items.ts';
import { hasPeers, peer } from '../../support/real-api.ts';

const NEVER = { signal: new AbortController().signal };
const MIB = 1 << 20;
const LARGE_MIB = 200;
/**
 * Memory limit of one transfer, in this process and in its buffers: the windows of a stream, and
 * garbage before its collection.
 */
const HELD_MIB_MAX = 100;

const failure = async (task: Promise<unknown>): Promise<string> => {
  try {
    await task;
  } catch (error) {
    return messageOf(error);
  }
  throw new Error('no failure');
};

/** Programs of Velero's own, in Go, loaded from one folder together with ours. */
describe.skipIf(!hasPeers('velero', 'velero-plugin-for-aws') || !hasStore('minio'))(
  'plugins in Go',
  () => {
    let folder: string;
    let bucket: Bucket;
    let host: PluginHost;
    let manager: PluginManager;
    let store: ObjectStore;

    beforeAll(async () => {
      folder = fs.mkdtempSync(join(tmpdir(), 'longshore-host-'));
      bucket = await startStore('minio');
      fs.symlinkSync(peer('velero-plugin-for-aws'), join(folder, 'velero-plugin-for-aws'));
      fs.symlinkSync(
        join(sharedPackage(), 'dist/velero-plugin-longshore'),
        join(folder, 'velero-plugin-longshore'),
      );
      // Velero's server starts itself so for its own actions.
      const script = `#!/bin/sh\nexec "${peer('velero')}" run-plugins "$@"\n`;
      fs.writeFileSync(join(folder, 'velero-own'), script, { mode: 0o755 });
      host = await PluginHost.open({
        folder,
        flags: ['--log-level', 'debug', '--features', 'EnableCSI'],
        environment: { ...bucket.environment, PATH: process.env.PATH },
        logger: silentLogger,
      });
      manager = host.manager(silentLogger);
      store = manager.objectStore('aws', config());
    }, 60_000);
    afterAll(async () => {
      await host.close();
      await bucket[Symbol.asyncDispose]();
      fs.rmSync(folder, { recursive: true, force: true });
    });

    const config = (more: Record<string, string> = {}): Record<string, string> => ({
      bucket: BUCKET,
      prefix: '',
      region: 'us-east-1',
      s3ForcePathStyle: 'true',
      s3Url: bucket.endpoint,
      ...more,
    });

    it('are all found', () => {
      expect(host.problems).toEqual([]);
      const of = (file: string): string[] =>
        host.plugins
          .filter(({ command }) => command === join(folder, file))
          .map(({ kind, name }) => `${kind} ${name}`);
      expect(of('velero-plugin-for-aws')).toEqual([
        'VolumeSnapshotter velero.io/aws',
        'ObjectStore velero.io/aws',
      ]);
      expect(of('velero-plugin-longshore')).toEqual([
        'BackupItemActionV2 longshore.io/pod-volume-backup',
        'DeleteItemAction longshore.io/dataupload-delete',
        'DeleteItemAction longshore.io/group-snapshot-delete',
      ]);
      const own = of('velero-own');
      expect(own).toContain('BackupItemAction velero.io/pv');
      expect(own).toContain('RestoreItemAction velero.io/add-pvc-from-pod');
      expect(own).toContain('BackupItemActionV2 velero.io/csi-pvc-backupper');
      expect(own).toContain('ItemBlockAction velero.io/pvc');
    });

    it('put, list, get, sign and delete objects of a bucket', async () => {
      const body = Buffer.from('a small object');
      await store.put(BUCKET, 'backups/b1/log.gz', [body], NEVER);
      await store.put(BUCKET, 'backups/b2/log.gz', [], NEVER);
      expect([...(await store.list(BUCKET, 'backups/', NEVER))].sort()).toEqual([
        'backups/b1/log.gz',
        'backups/b2/log.gz',
      ]);
      expect(await store.listCommonPrefixes(BUCKET, '/', 'backups/', NEVER)).toEqual([
        'backups/b1/',
        'backups/b2/',
      ]);
      expect(await store.exists(BUCKET, 'backups/b1/log.gz', NEVER)).toBe(true);
      expect(await store.exists(BUCKET, 'backups/b3/log.gz', NEVER)).toBe(false);
      const parts: Uint8Array[] = [];
      for await (const part of store.get(BUCKET, 'backups/b1/log.gz', NEVER)) parts.push(part);
      expect(Buffer.concat(parts).toString()).toBe('a small object');
      for await (const part of store.get(BUCKET, 'backups/b2/log.gz', NEVER)) {
        expect(part).toHaveLength(0);
      }
      const url = await store.signedUrl(BUCKET, 'backups/b1/log.gz', 600_000, NEVER);
      expect(url).toContain('X-Amz-Expires=600');
      expect(await (await fetch(url)).text()).toBe('a small object');
      await store.delete(BUCKET, 'backups/b1/log.gz', NEVER);
      expect(await store.exists(BUCKET, 'backups/b1/log.gz', NEVER)).toBe(false);
    });

    it('say what is wrong with a configuration, a bucket or a key', async () => {
      const wrong = manager.objectStore('aws', config({ regoin: 'x' }));
      expect(await failure(wrong.exists(BUCKET, 'x', NEVER))).toMatch(/invalid keys \[regoin\]/);
      expect(await failure(store.put('no-such-bucket', 'x', [Buffer.from('x')], NEVER))).toMatch(
        /NoSuchBucket|bucket does not exist/i,
      );
      const read = async (): Promise<void> => {
        await Array.fromAsync(store.get(BUCKET, 'no-such-key', NEVER));
      };
      expect(await failure(read())).toMatch(/NoSuchKey/);
    });

    it('move an object of 200 MiB either way in bounded memory', async () => {
      const sent = createHash('sha256');
      let most = 0;
      const before = held();
      const look = (): void => {
        most = Math.max(most, held() - before);
      };
      function* body(): Generator<Uint8Array> {
        const bytes = Buffer.alloc(MIB);
        for (let i = 0; i < LARGE_MIB; i++) {
          bytes.fill(i);
          bytes.writeUInt32BE(i, 0);
          const part = Buffer.from(bytes);
          sent.update(part);
          look();
          yield part;
        }
      }
      await store.put(BUCKET, 'large', body(), NEVER);
      const got = createHash('sha256');
      let size = 0;
      for await (const part of store.get(BUCKET, 'large', NEVER)) {
        got.update(part);
        size += part.length;
        look();
      }
      expect(size).toBe(LARGE_MIB * MIB);
      expect(got.digest('hex')).toBe(sent.digest('hex'));
      expect(most / MIB).toBeLessThan(HELD_MIB_MAX);
    }, 60_000);

    it('answer as volume snapshotters', async () => {
      const snapshotter = manager.volumeSnapshotter('aws', { region: 'us-east-1' });
      const volume = {
        kind: 'PersistentVolume',
        apiVersion: 'v1',
        metadata: { name: 'pv' },
        spec: { csi: { driver: 'ebs.csi.aws.com', volumeHandle: 'vol-0a1b2c' } },
      } as unknown as KubeObject;
      expect(await snapshotter.volumeIdOf(volume, NEVER)).toBe('vol-0a1b2c');
      const other = await snapshotter.withVolumeId(volume, 'vol-9f', NEVER);
      expect(other).toMatchObject({ spec: { csi: { volumeHandle: 'vol-9f' } } });
      const foreign = { ...volume, spec: { hostPath: { path: '/x' } } } as KubeObject;
      expect(await snapshotter.volumeIdOf(foreign, NEVER)).toBe('');
    });

    it('run as actions of version 1', async () => {
      const volume = {
        kind: 'PersistentVolumeClaim',
        apiVersion: 'v1',
        metadata: { name: 'data', namespace: 'app' },
        spec: { volumeName: 'pv-1' },
        status: { phase: 'Bound' },
      } as unknown as KubeObject;
      const pv = manager.backupItemAction('velero.io/pv');
      expect((await pv.appliesTo(NEVER)).includedResources).toEqual(['persistentvolumeclaims']);
      expect(await pv.action.execute(volume, backupOf('b1'), NEVER)).toMatchObject({
        additionalItems: [{ resource: 'persistentvolumes', name: 'pv-1' }],
        operationId: '',
      });
      const restore = manager.restoreItemAction('velero.io/add-pvc-from-pod');
      const pod = {
        kind: 'Pod',
        apiVersion: 'v1',
        metadata: { name: 'p', namespace: 'app' },
        spec: { volumes: [{ name: 'v', persistentVolumeClaim: { claimName: 'data' } }] },
      } as unknown as KubeObject;
      const input = { item: pod, itemFromBackup: pod, restore: restoreOf('r1', 'b1') };
      expect(await restore.action.execute(input, NEVER)).toMatchObject({
        additionalItems: [{ resource: 'persistentvolumeclaims', namespace: 'app', name: 'data' }],
        skipRestore: false,
      });
    });
  },
);

/** Bytes of this process: the heap, and buffers outside of it. */
function held(): number {
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}
