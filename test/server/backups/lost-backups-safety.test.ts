import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest';
import {
  BackupArchive,
  bucketOf,
  signingBy,
  signWith,
  TarballWriter,
} from '../../../src/archive/index.ts';
import { CanceledError, CodedError, silentLogger } from '../../../src/base/index.ts';
import type { Bucket } from '../../../src/blob/index.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  type Backup,
  BACKUPS,
  CONFIG_MAPS,
  connectToCluster,
  CUSTOM_RESOURCE_DEFINITIONS,
  type KubeClient,
  NAMESPACES,
  PODS,
} from '../../../src/kube/index.ts';
import { BackupJournal } from '../../../src/server/backups/run/journal.ts';
import { UnderWayNotes } from '../../../src/server/backups/running-backups.ts';
import { FileWriters } from '../../../src/server/runs/file-writers.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { MemoryBucket } from '../../support/memory-bucket.ts';
import { openLost } from './support/lost.ts';
import { withCalls } from '../../support/with-calls.ts';

const VELERO = 'velero';
const scratch = tempDirectory('safety-lost');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});

interface Attack {
  readonly crd?: () => object | undefined;
  readonly findPod?: (name: string) => Promise<void>;
  readonly removeSnapshots?: () => Promise<void>;
  readonly assertLeading?: () => void;
  readonly writers?: FileWriters;
  readonly bucket?: (bucket: MemoryBucket) => Bucket;
  readonly open?: (location: string, signal: AbortSignal) => Promise<void>;
}

describe('Backups that are lost', () => {
  let server: ApiServer;
  let client: KubeClient;
  let bucket: MemoryBucket;
  let told: string[];
  let stop: (() => Promise<void>) | undefined;

  beforeEach(async () => {
    server = await ApiServer.start();
    const kubeconfig = join(scratch, 'kubeconfig');
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    for (const name of [VELERO, 'a']) await client.create(NAMESPACES, { metadata: { name } });
    for (const name of ['p', 'q']) {
      await client.create(PODS, {
        metadata: {
          namespace: 'a',
          name,
          annotations: { 'post.hook.backup.velero.io/command': 'thaw' },
        },
        spec: { containers: [{ name: 'main' }] },
      });
    }
    bucket = new MemoryBucket();
    told = [];
  });
  afterEach(async () => {
    await stop?.();
    stop = undefined;
    client.close();
    await server[Symbol.asyncDispose]();
  });

  const backupOf = (name: string, uid: string, phase: string, more: object = {}): Backup => ({
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: {
      namespace: VELERO,
      name,
      uid,
      resourceVersion: '1',
      creationTimestamp: '2026-11-21T01:00:00Z',
    },
    spec: { storageLocation: 'default', ...more },
    status: { phase, startTimestamp: '2026-11-21T02:00:00Z' },
  });

  async function note(backup: Backup): Promise<void> {
    const options = { client, logger: silentLogger, namespace: VELERO };
    const notes = new UnderWayNotes({ ...options, assertLeading: () => undefined });
    await notes.write(backup, new AbortController().signal);
  }

  async function journal({ metadata: { name, uid } }: Backup, pods = ['p']): Promise<void> {
    await using opened = await BackupJournal.open({
      isSealed: false,
      bucket,
      name,
      uid,
      directory: scratch,
      signal: new AbortController().signal,
      logger: silentLogger,
      assertLeading: () => undefined,
    });
    for (const pod of pods) {
      const item = { group: '', resource: 'pods', namespace: 'a', name: pod };
      await opened.put({
        kind: 'v1/Pod',
        namespace: 'a',
        name: pod,
        files: [],
        hasEffect: true,
        hasFailed: false,
        owesPostHooks: true,
        facts: [],
        operations: [
          { action: 'x/y', item, operationId: `op-${name}-${pod}`, postOperationItems: [] },
        ],
      });
    }
  }

  /** All files of a finished backup. */
  async function files(backup: Backup): Promise<void> {
    await using contents = await (await TarballWriter.begin(scratch)).finish();
    await new BackupArchive(bucket).put(backup.metadata.name, {
      contents,
      itemOperations: [],
      volumeInfos: [],
      volumeSnapshots: [],
      podVolumeBackups: [],
      results: {},
      resourceList: {},
      metadata: backup,
    });
  }

  const notes = async (): Promise<string[]> =>
    (await client.list(CONFIG_MAPS, { namespace: VELERO })).map(({ metadata }) => metadata.name);
  const keys = (): string[] => [...bucket.objects.keys()].sort();

  async function lead(attack: Attack = {}) {
    const abort = new AbortController();
    const { signal } = abort;
    const strange = withCalls(client, {
      exec: ({ pod, command }: { pod: string; command: string[] }) => {
        told.push(`${command.join(' ')} ${pod}`);
        return Promise.resolve({ stdout: '', stderr: '' });
      },
      find: async (...[resource, ref, options]: Parameters<KubeClient['find']>) => {
        if (resource === CUSTOM_RESOURCE_DEFINITIONS) {
          const known = { creationTimestamp: '2026-11-01T00:00:00Z' };
          return attack.crd ? attack.crd() : { metadata: { name: ref.name, ...known } };
        }
        if (resource.plural === 'pods') await attack.findPod?.(ref.name);
        return client.find(resource, ref, options);
      },
    });
    const shown = attack.bucket?.(bucket) ?? bucket;
    const buckets = {
      open: async (location: string, asked: AbortSignal) => {
        await attack.open?.(location, asked);
        return { bucket: shown, [Symbol.asyncDispose]: () => Promise.resolve() };
      },
    };
    const { lost, ended } = await openLost({
      namespace: VELERO,
      client,
      seen: strange,
      buckets,
      signal,
      ...(attack.writers && { writers: attack.writers }),
      say: (text) => {
        told.push(text);
        return Promise.resolve();
      },
      assertLeading: attack.assertLeading ?? (() => undefined),
      removeSnapshots: () => attack.removeSnapshots?.() ?? Promise.resolve(),
    });
    stop = async () => {
      abort.abort(new CanceledError('shutdown'));
      await ended();
    };
    return lost;
  }

  it('keep their files while somebody writes some, who does not stop', async () => {
    const backup = backupOf('b1', 'u1', 'Finalizing');
    await note(backup);
    await files(backup);
    const writers = new FileWriters(20);
    const writing = Promise.withResolvers<undefined>();
    const asked = Promise.withResolvers<undefined>();
    void writers.run('u1', (closing) => {
      closing.addEventListener('abort', () => {
        asked.resolve(undefined);
      });
      return writing.promise;
    });
    await lead({ writers });
    await asked.promise;
    await expect.poll(() => writers.close('u1')).toBe(false);
    expect(keys()).toContain('backups/b1/velero-backup.json');
    writing.resolve(undefined);
    await expect.poll(keys, { timeout: 10_000 }).toEqual([]);
    await expect.poll(notes).toEqual([]);
  });

  it('files of a finished backup stay whose Backup was made again from the bucket, with another UID', async () => {
    // The server was killed after it wrote Completed and before it deleted the note. Then the
    // Backup was deleted, and recreated by a sync, as with Velero.
    const old = backupOf('b1', 'u1', 'Completed');
    await note(backupOf('b1', 'u1', 'InProgress'));
    await files(old);
    const { spec, status } = old;
    await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'b1' },
      spec,
      status,
    });
    const before = keys();
    await lead();
    await expect.poll(notes).toEqual([]);
    expect(keys()).toEqual(before);
  });

  it('files of a backup whose key is missing stay until somebody can tell, and its pods are thawed', async () => {
    const sign = async (current: string): Promise<void> => {
      const signing = await signingBy({ current, others: [], earlierKeys: [] });
      signWith(bucket, { signing, isRequired: false });
    };
    const backup = backupOf('b1', 'u1', 'InProgress');
    await note(backup);
    await journal(backup);
    await sign('a secret');
    await files(backupOf('b1', 'u1', 'Completed'));
    const before = keys().filter((key) => !key.includes('longshore-journal'));
    await sign('of a moment');
    await lead();
    await expect.poll(() => told, { timeout: 10_000 }).toContain('thaw p');
    await sleep(500);
    expect(keys()).toEqual(expect.arrayContaining(before));
    expect(await notes()).toHaveLength(1);
    await sign('a secret');
    await expect.poll(notes, { timeout: 20_000 }).toEqual([]);
    expect(keys()).toEqual(before);
  }, 60_000);

  it('files of a backup that has ended as Completed stay, whoever deleted its Backup while no server led', async () => {
    await note(backupOf('b1', 'u1', 'InProgress'));
    await files(backupOf('b1', 'u1', 'Completed'));
    const before = keys();
    await lead();
    await expect.poll(notes).toEqual([]);
    expect(keys()).toEqual(before);
  });

  it('files of a backup that has ended are published where its server was killed right before that', async () => {
    const backup = backupOf('b1', 'u1', 'Completed');
    await note(backupOf('b1', 'u1', 'InProgress'));
    const key = 'backups/b1/velero-backup.json';
    const once = bucketOf(bucket, { isWriteOnce: true });
    await once.put(key, [Buffer.from(JSON.stringify({ apiVersion: 'velero.io/v1', ...backup }))]);
    expect(bucket.objects.has(key)).toBe(false);
    await lead({ bucket: (real) => bucketOf(real, { isWriteOnce: true }) });
    await expect.poll(notes).toEqual([]);
    expect(bucket.objects.has(key)).toBe(true);
  });

  it('files of a backup that has failed are published once the bucket is there again, where that was cut off', async () => {
    const made = await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'b1' },
      spec: { storageLocation: 'default' },
      status: { phase: 'Failed' },
    });
    const backup = backupOf('b1', made.metadata.uid, 'Failed');
    await note(backupOf('b1', made.metadata.uid, 'InProgress'));
    const once = bucketOf(bucket, { isWriteOnce: true });
    const text = JSON.stringify({ apiVersion: 'velero.io/v1', ...backup });
    await once.put('backups/b1/b1-logs.gz', [Buffer.from('log')]);
    await once.put('backups/b1/velero-backup.json', [Buffer.from(text)]);
    let away = 2;
    class Away extends MemoryBucket {
      override objects = bucket.objects;
      override put(...put: Parameters<MemoryBucket['put']>): Promise<void> {
        if (away-- > 0)
          return Promise.reject(new CodedError('STORAGE_FAILED', 'away', { retry: 'backoff' }));
        return super.put(...put);
      }
    }
    await lead({ bucket: () => bucketOf(new Away(), { isWriteOnce: true }) });
    await expect.poll(notes, { timeout: 15_000 }).toEqual([]);
    expect(away).toBeLessThan(0);
    expect(keys().filter((key) => !key.includes('/_sealed/'))).toEqual([
      'backups/b1/b1-logs.gz',
      'backups/b1/velero-backup.json',
    ]);
  });

  it('files of a backup that was ended without its bucket are published, also if its run was over long before', async () => {
    const made = await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'b1' },
      spec: { storageLocation: 'default' },
      status: { phase: 'Finalizing' },
    });
    const backup = backupOf('b1', made.metadata.uid, 'PartiallyFailed');
    await note(backupOf('b1', made.metadata.uid, 'InProgress'));
    const once = bucketOf(bucket, { isWriteOnce: true });
    const text = JSON.stringify({ ...backup, status: { phase: 'Completed' } });
    await once.put('backups/b1/velero-backup.json', [Buffer.from(text)]);
    const lost = await lead({ bucket: (real) => bucketOf(real, { isWriteOnce: true }) });
    lost.forgotten(backup);
    const status = { ...backup.status, failureReason: 'it could not be completed for 18000 s' };
    lost.over({ ...backup, status });
    await expect.poll(notes).toEqual([]);
    expect(bucket.objects.has('backups/b1/velero-backup.json')).toBe(true);
  });

  it('files stay where the kind is being deleted: objects go first, and the kind after them', async () => {
    await note(backupOf('b1', 'u1', 'InProgress'));
    await files(backupOf('b1', 'u1', 'WaitingForPluginOperations'));
    const before = keys();
    await lead({
      crd: () => ({
        metadata: {
          name: 'backups.velero.io',
          creationTimestamp: '2026-11-01T00:00:00Z',
          deletionTimestamp: '2026-11-21T03:00:00Z',
          finalizers: ['customresourcecleanup.apiextensions.k8s.io'],
        },
      }),
    });
    await expect.poll(notes).toEqual([]);
    expect(keys()).toEqual(before);
  });

  it('post hooks run once, however often the rest is tried', async () => {
    const backup = backupOf('b1', 'u1', 'InProgress');
    await note(backup);
    await journal(backup);
    await lead({
      removeSnapshots: () =>
        Promise.reject(new CodedError('SNAPSHOT_STAYS', 'it stays', { retry: 'backoff' })),
    });
    await sleep(4000);
    expect(told.filter((text) => text === 'thaw p')).toEqual(['thaw p']);
  });

  it('one pod that may not be read makes no other pod thaw twice', async () => {
    const backup = backupOf('b1', 'u1', 'InProgress');
    await note(backup);
    await journal(backup, ['p', 'q']);
    const lost = await lead({
      findPod: (name) =>
        name === 'q'
          ? Promise.reject(
              new CodedError('KUBE_UNAVAILABLE', 'no', {
                retry: 'backoff',
                facts: { httpStatus: 500 },
              }),
            )
          : Promise.resolve(),
    });
    await sleep(9000);
    expect([told.filter((text) => text === 'thaw p'), lost.has(`${VELERO}/b1`)]).toEqual([
      ['thaw p'],
      true,
    ]);
  }, 20_000);

  it('one pod that nobody may read holds neither the name nor the operations for ever', async () => {
    const backup = backupOf('b1', 'u1', 'InProgress');
    await note(backup);
    await journal(backup, ['p', 'q']);
    await lead({
      findPod: (name) =>
        name === 'q'
          ? Promise.reject(new CodedError('KUBE_FORBIDDEN', 'no right'))
          : Promise.resolve(),
    });
    await sleep(3000);
    expect(told.filter((text) => text.startsWith('cancel'))).toEqual([
      'cancel op-b1-p',
      'cancel op-b1-q',
    ]);
  }, 20_000);

  it('nothing is removed after leadership was lost', async () => {
    const backup = backupOf('b1', 'u1', 'InProgress');
    await note(backup);
    await files(backupOf('b1', 'u1', 'InProgress'));
    let isLeading = true;
    const late: string[] = [];
    await lead({
      assertLeading: () => {
        if (!isLeading) throw new CodedError('LEADERSHIP_LOST', 'another one may lead');
      },
      bucket: (real) =>
        Object.assign(Object.create(real) as MemoryBucket, {
          delete: async (key: string) => {
            if (!isLeading) late.push(key);
            await real.delete(key);
            // The process slept here, and another one leads.
            isLeading = false;
          },
        }),
    });
    await sleep(1000);
    expect(isLeading).toBe(false);
    expect(late).toEqual([]);
  });

  it('nothing is ended of a Backup that is there after all', async () => {
    const { spec, status } = backupOf('b1', '', 'WaitingForPluginOperations');
    const made = (await client.create(BACKUPS, {
      metadata: { namespace: VELERO, name: 'b1' },
      spec,
      status,
    })) as Backup;
    await note(made);
    await journal(made);
    const lost = await lead();
    // A watch may list again from a stale member of etcd.
    lost.add(made);
    await expect.poll(() => lost.has(`${VELERO}/b1`)).toBe(false);
    expect([told, await notes()]).toEqual([[], [`longshore-backup-${made.metadata.uid}`]]);
  });

  it('pods are thawed although four other locations hang', async () => {
    for (let i = 0; i < 4; i++) {
      await note(backupOf(`dead${i}`, `a${i}`, 'InProgress', { storageLocation: 'dead' }));
    }
    const good = backupOf('good', 'z', 'InProgress');
    await note(good);
    await journal(good);
    await lead({
      open: (location, signal) =>
        location === 'dead'
          ? new Promise((_resolve, reject) => {
              signal.addEventListener('abort', () => {
                reject(signal.reason as Error);
              });
            })
          : Promise.resolve(),
    });
    await expect.poll(() => told).toContain('thaw p');
  }, 10_000);

  it('a server that may not read definitions gives the name back all the same', async () => {
    await note(backupOf('b1', 'u1', 'InProgress'));
    const lost = await lead({
      crd: () => {
        throw new CodedError('KUBE_FORBIDDEN', 'no right');
      },
    });
    await expect.poll(() => lost.has(`${VELERO}/b1`)).toBe(false);
  });
});
